// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"go/scanner"
	"go/token"
	"regexp"
	"strings"
	"testing"
)

// wording is a phrase that readers neither use nor search for, and its replacement.
type wording struct {
	phrase  *regexp.Regexp
	instead string
}

func phrase(pattern, instead string) wording {
	return wording{regexp.MustCompile(`(?i)\b(?:` + pattern + `)\b`), instead}
}

var wordings = []wording{
	phrase(`tells`, "reports, returns, shows, logs, notifies, distinguishes"),
	phrase(`(is|are|be|was|were|been|being|just) told`, "is notified, receives, learns"),
	phrase(`whoever`, "the client, the caller, any process"),
	phrase(`nobody|somebody`, "no process, no client, another program: name the actor"),
	phrase(`anew`, "again, or the verb with re-: re-created"),
	phrase(`of (its|their) own accord`, "on its own, without a request"),
	phrase(`to and fro`, "in both directions, back and forth"),
	phrase(`beside`, "next to, in addition to, alongside"),
	phrase(`looks? at`, "examine, read, check"),
	phrase(`what others`, "the foreign programs, the other modules: name them"),
	phrase(`hardly meant`, "probably not intended"),
	phrase(`unless (said|told)( otherwise)?`, "by default"),
	phrase(`(goes|go|going) on(?: with)?`, "continues, keeps running, passes to"),
	phrase(`gives? way`, "is evicted, is discarded"),
	phrase(`has to be told|tell of|tells of|telling of`, "report, log, describe"),
	phrase(`in its turn|takes? its turn`, "is next, runs"),
	phrase(`for ever`, "indefinitely, permanently"),
	phrase(`(is|are) no more`, "no longer exists, was removed"),
	phrase(`tell (whether|which|what)`, "report, list, describe"),
	phrase(`sees? to (it|that|what)`, "ensures, guarantees"),
	phrase(`for want of`, "for lack of, without"),
	phrase(`without a word`, "silently"),
	phrase(`bec[ao]mes? of|become of`, "the result, the verdict, the state of"),
	phrase(`would else`, "would otherwise"),
	phrase(`once more`, "again"),
	phrase(`comes? along`, "moves, is passed"),
	phrase(`behind which`, "followed by"),
	phrase(`let(s|ting)? go of`, "releases, closes, discards, frees"),
	phrase(`look-ups?`, "lookup"),
	phrase(`(gives?|gave|giving) back`, "returns, releases, frees"),
	phrase(`at any rate`, "in any case, always"),
	phrase(`in the manner of`, "as, like"),
	phrase(`turn(s|ed)? round`, "reversed, swapped"),
	phrase(`seldom`, "rarely, less often"),
	phrase(`knows? nothing of`, "does not know"),
	phrase(`beginners?`, "initiator"),
	phrase(`henceforth|thereof|hereby|whereof|afresh`, "from now on, of it, again"),
	phrase(`(none|no) of (its|their) business`, "not visible to it, not its task"),
}

// identifiers matches names in Go and C for which the field has better terms.
var identifiers = regexp.MustCompile(`(?i)^(.*(nobody.+|somebody|whoever|enliven|lookaround|lookahead|ifthere)|.+(beside|anew))$`)

// Comments, texts and documents use the terms of the field (docs/glossary.md).
func TestLanguage(t *testing.T) {
	for _, suffix := range []string{".go", ".c", ".h", ".md", ".yaml"} {
		for _, file := range files(t, suffix) {
			if strings.Contains(file, "_gen.") || file == "CHANGELOG.md" || file == "test/repository/language_test.go" {
				continue
			}
			text := prose(suffix, read(t, file))
			for _, w := range wordings {
				for _, match := range w.phrase.FindAllString(text, -1) {
					t.Errorf("%s: %q: write %s", file, match, w.instead)
				}
			}
		}
	}
}

// Names use the terms of the field, too. Tests are exempt: they may name a test double by its behaviour.
func TestLanguageOfNames(t *testing.T) {
	for _, suffix := range []string{".go", ".c", ".h"} {
		for _, file := range files(t, suffix) {
			if strings.Contains(file, "_test.") || strings.Contains(file, "testdata/") {
				continue
			}
			for name := range identifiersOf(read(t, file)) {
				if identifiers.MatchString(name) {
					t.Errorf("%s: the name %s is not a term of the field (docs/glossary.md)", file, name)
				}
			}
		}
	}
}

var literals = regexp.MustCompile("(?s)`[^`]*`" + `|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'|` + comments.String())
var identifier = regexp.MustCompile(`[A-Za-z_]\w*`)

// identifiersOf returns the identifiers and keywords of Go or C source.
func identifiersOf(text string) map[string]bool {
	out := map[string]bool{}
	for _, name := range identifier.FindAllString(literals.ReplaceAllString(text, " "), -1) {
		out[name] = true
	}
	return out
}

// unixUser contains the user name nobody, which is not a wording.
const unixUser = "nobody:x:65534:65534:nobody:"

var comments = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)

// prose returns the text of a file that readers see: comments and strings of Go, comments of C, all of a document.
func prose(suffix, text string) string {
	text = strings.ReplaceAll(text, unixUser, "")
	switch suffix {
	case ".c", ".h":
		return strings.Join(comments.FindAllString(text, -1), "\n")
	case ".go":
		return goProse(text)
	}
	return text
}

func goProse(text string) string {
	var s scanner.Scanner
	var out strings.Builder
	set := token.NewFileSet()
	s.Init(set.AddFile("", set.Base(), len(text)), []byte(text), nil, scanner.ScanComments)
	for {
		_, tok, literal := s.Scan()
		switch tok {
		case token.EOF:
			return out.String()
		case token.COMMENT, token.STRING:
			out.WriteString(literal + "\n")
		}
	}
}

func TestLanguageIsFound(t *testing.T) {
	for text, want := range map[string]int{
		"// ready tells whether it runs\nfunc tells() {}":  1,
		"var s = \"nobody listens\"":                       1,
		"// ready reports whether it runs\nvar nobody = 1": 0,
	} {
		n := 0
		for _, w := range wordings {
			n += len(w.phrase.FindAllString(prose(".go", text), -1))
		}
		if n != want {
			t.Errorf("%q: %d, want %d", text, n, want)
		}
	}
}
