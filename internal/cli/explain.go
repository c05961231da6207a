// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/packet"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/server"
	"github.com/kerb-edge/kerb/internal/suggest"
	"github.com/kerb-edge/kerb/modules"
)

func (a *app) schemaCommand() *cobra.Command {
	return answers(&cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of all resources, for editors and checkers",
		Long: "Prints a JSON Schema (2020-12) for files with resources, the configurations of built-in packages included. " +
			"Editors with a\n" +
			"YAML language server use it with this comment in the first line of a file:\n\n" +
			"  # yaml-language-server: $schema=/etc/kerb/schema.json",
		Example: "  kerb schema > /etc/kerb/schema.json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			schema, err := fullSchema()
			if err != nil {
				return err
			}
			if a.output == "table" {
				defer func(output string) { a.output = output }(a.output)
				a.output = "json"
			}
			return a.print(cmd.OutOrStdout(), schema, nil)
		},
	})
}

// fullSchema returns the schema of the resources, with the schemas of packages as the config of modules.
func fullSchema() (map[string]any, error) {
	schema, err := server.Schema()
	if err != nil {
		return nil, err
	}
	var cases []any
	for _, p := range pkgs.NewCatalog(modules.Packages(), modules.Controls()).Builtin() {
		if p.ConfigSchema == nil {
			continue
		}
		cases = append(cases, map[string]any{
			"if": map[string]any{"properties": map[string]any{"package": map[string]any{"const": p.Name}},
				"required": []any{"package"}},
			"then": map[string]any{"properties": map[string]any{"config": map[string]any{"$ref": "#/$defs/config-" + p.Name}}},
		})
		config, err := embedded(p.ConfigSchema, "#/$defs/config-"+p.Name)
		if err != nil {
			return nil, err
		}
		schema["$defs"].(map[string]any)["config-"+p.Name] = config
	}
	schema["$defs"].(map[string]any)["ModuleSpec"].(map[string]any)["allOf"] = cases
	return schema, nil
}

// embedded returns a copy of a package's schema with references adapted to its place in the full schema.
func embedded(tree map[string]any, at string) (out map[string]any, err error) {
	text, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	err = json.Unmarshal([]byte(strings.ReplaceAll(string(text), `"$ref":"#/`, `"$ref":"`+at+`/`)), &out)
	return out, err
}

func (a *app) explainCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "explain KIND[.FIELD...]|PACKAGE[.FIELD...]",
		Short: "Describe a kind of resource, a package's configuration, a field of either, or what happens to a packet",
		Example: `  kerb explain module
  kerb explain module.spec.attach
  kerb explain firewall.rules.dstPort`,
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return explained(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			schema, err := fullSchema()
			if err != nil {
				return err
			}
			e := explanation{schema["$defs"].(map[string]any)}
			return e.explain(cmd.OutOrStdout(), args[0])
		},
	}
	c.AddCommand(a.explainPacketCommand())
	return c
}

func (a *app) explainPacketCommand() *cobra.Command {
	var r v1alpha1.ExplainRequest
	c := answers(&cobra.Command{
		Use:   "packet PACKET --service NAME",
		Short: "Show what the modules of a service would do to a packet",
		Long: "Runs a simulated packet through copies of the chains of a service, with copies of their tables, and " +
			"shows what\n" +
			"each module would do to it now. A packet of a tracked connection is treated as part of it. Nothing is sent, and\n" +
			"counters do not change.",
		Example: `  kerb explain packet 'tcp 198.51.100.7:40000 > 10.18.0.5:80 syn' --service web
  kerb explain packet 'udp 10.18.0.5:5000 > 192.0.2.9:53 length 64' --service web
  kerb explain packet 'icmp 198.51.100.7 > 10.18.0.5 type 8' --service web`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Packet = args[0]
			return a.explainPacket(cmd, r)
		},
	})
	c.Flags().StringVar(&r.Service, "service", "", "the service whose modules process the packet")
	_ = c.RegisterFlagCompletionFunc("service", kindOf(resource.Service).complete(a))
	c.Flags().StringVar(&r.Direction, "direction", "", "ingress (to the service) or egress; by default the one in "+
		"which the service has an address of the packet")
	_ = c.RegisterFlagCompletionFunc("direction", cobra.FixedCompletions([]string{"ingress", "egress"},
		cobra.ShellCompDirectiveNoFileComp))
	return c
}

// explainPacket prints the packet at each chain like a trace, and the final verdict.
func (a *app) explainPacket(cmd *cobra.Command, r v1alpha1.ExplainRequest) error {
	if r.Service == "" {
		return &usageError{errors.New("--service is missing: the service whose modules the packet meets")}
	}
	if _, err := packet.Parse(r.Packet); err != nil {
		return &usageError{err}
	}
	q := url.Values{"packet": {r.Packet}, "service": {r.Service}}
	if r.Direction != "" {
		q.Set("direction", r.Direction)
	}
	return show(cmd, a, "/v1/explain?"+q.Encode(), func(w io.Writer, out v1alpha1.ExplainedPacket) {
		for _, p := range out.Packets {
			describeTraced(w, p, false)
		}
		fmt.Fprintln(w, describeEnd(out))
	})
}

// describeEnd describes the final verdict. A verdict that this build does not know is printed unchanged.
func describeEnd(out v1alpha1.ExplainedPacket) string {
	end := fmt.Sprintf("gets the verdict %q", out.Verdict)
	if verdict, ok := kerbabi.VerdictNamed(out.Verdict); ok {
		end = verdict.Past()
	} else if out.Verdict == "pass" {
		end = kerbabi.Next.Past()
	}
	if out.Module != "" {
		end += " by " + out.Module
	}
	if out.Reason != "" {
		end += " (" + out.Reason + ")"
	}
	return "the packet " + end
}

// explained returns the possible arguments of explain.
func explained() []string {
	var out []string
	for _, k := range resource.Kinds() {
		out = append(append(out, k.Names().Noun), k.Names().Aliases...)
	}
	for _, p := range pkgs.NewCatalog(modules.Packages(), modules.Controls()).Builtin() {
		out = append(out, p.Name)
	}
	slices.Sort(out)
	return out
}

// explanation reads schemas.
type explanation struct{ defs map[string]any }

// explain prints the field at a path such as module.spec.attach, or firewall.rules for the config of a package.
// Indices are ignored: all items have the same fields.
func (e explanation) explain(w io.Writer, path string) error {
	steps := strings.Split(path, ".")
	kind, err := findKind(steps[0])
	at, ok := e.defs[kind.Kind].(map[string]any)
	if err != nil || !ok {
		at, ok = e.defs["config-"+steps[0]].(map[string]any)
	}
	if !ok {
		return &apierrors.Invalid{Reason: fmt.Sprintf("%q is neither a resource kind nor a package; known are %s%s", steps[0],
			strings.Join(explained(), ", "), suggest.DidYouMean(steps[0], explained()))}
	}
	for i, name := range steps[1:] {
		name, _, _ = strings.Cut(name, "[")
		fields := e.fields(at)
		next, ok := fields[name].(map[string]any)
		if !ok {
			known := slices.Sorted(maps.Keys(fields))
			return &apierrors.Invalid{Field: strings.Join(steps[:i+1], "."), Reason: fmt.Sprintf("no field %s; known are %s%s",
				name, strings.Join(known, ", "), suggest.DidYouMean(name, known))}
		}
		at = next
	}
	e.print(w, path, at)
	return nil
}

func (e explanation) print(w io.Writer, path string, at map[string]any) {
	full := e.resolve(at)
	fmt.Fprintln(w, strings.TrimSpace(path+"  "+e.typeOf(at)))
	for _, source := range []map[string]any{at, full} {
		if text, _ := source["description"].(string); text != "" {
			fmt.Fprintf(w, "\n  %s\n", text)
			break
		}
	}
	for _, key := range []string{"default", "enum", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
		"pattern", "patternDescription"} {
		if value, ok := full[key]; ok {
			fmt.Fprintf(w, "  %s: %s\n", key, inCell(value))
		}
	}
	fields := e.fields(at)
	if len(fields) == 0 {
		return
	}
	fmt.Fprintln(w, "\nFields:")
	required, _ := e.items(at)["required"].([]any)
	for _, name := range sortedKeys(fields) {
		e.printField(w, name, fields[name], slices.Contains(required, any(name)))
	}
}

func (e explanation) printField(w io.Writer, name string, v any, required bool) {
	field, _ := v.(map[string]any)
	mark := ""
	if required {
		mark = " (required)"
	}
	fmt.Fprintf(w, "  %-16s %s%s\n", name, e.typeOf(field), mark)
	text, _ := field["description"].(string)
	if text == "" {
		text, _ = e.resolve(field)["description"].(string)
	}
	if text != "" {
		fmt.Fprintf(w, "      %s\n", text)
	}
}

// fields returns the fields of an object, or of the objects in a list.
func (e explanation) fields(at map[string]any) map[string]any {
	fields, _ := e.items(at)["properties"].(map[string]any)
	return fields
}

func (e explanation) items(at map[string]any) map[string]any {
	at = e.resolve(at)
	for items, ok := at["items"].(map[string]any); ok; items, ok = at["items"].(map[string]any) {
		at = e.resolve(items)
	}
	return at
}

// resolve follows references.
func (e explanation) resolve(at map[string]any) map[string]any {
	for range 8 { // more than any schema needs; ends cycles
		ref, _ := at["$ref"].(string)
		path, ok := strings.CutPrefix(ref, "#/$defs/")
		if !ok {
			break
		}
		var next any = e.defs
		for _, step := range strings.Split(path, "/") {
			object, _ := next.(map[string]any)
			next = object[step]
		}
		at, _ = next.(map[string]any)
	}
	return at
}

// typeOf returns a schema's type in words, such as "list of string" or "integer or string". It omits null, which every
// optional field may be.
func (e explanation) typeOf(at map[string]any) string {
	full := e.resolve(at)
	for _, key := range []string{"oneOf", "anyOf"} {
		branches, _ := full[key].([]any)
		var texts []string
		for _, b := range branches {
			branch, _ := b.(map[string]any)
			if text := e.typeOf(branch); !slices.Contains(texts, text) {
				texts = append(texts, text)
			}
		}
		if len(texts) > 0 {
			return strings.Join(texts, " or ")
		}
	}
	switch t := full["type"].(type) {
	case string:
		if items, ok := full["items"].(map[string]any); ok && t == "array" {
			return "list of " + e.typeOf(items)
		}
		return t
	case []any:
		text := inCell(slices.DeleteFunc(slices.Clone(t), func(v any) bool { return v == "null" }))
		if items, ok := full["items"].(map[string]any); ok && text == "array" {
			return "list of " + e.typeOf(items)
		}
		return text
	}
	return ""
}
