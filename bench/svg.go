// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"image/color"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	plotWidth  = 18 * vg.Centimeter
	plotHeight = 10 * vg.Centimeter
)

// theme has the colours of plots for pages in light or dark mode.
type theme struct {
	name                  string
	ink, grid, background color.Color
}

var themes = []theme{
	{"light", color.Gray{0x24}, color.Gray{0xdd}, color.Gray{0xff}},
	{"dark", color.Gray{0xd4}, color.Gray{0x3a}, color.RGBA{0x0d, 0x11, 0x17, 0xff}},
}

// palette has colours that are distinguishable on both backgrounds, also with most kinds of red-green colour blindness.
var palette = []color.Color{
	color.RGBA{0x2f, 0x81, 0xd6, 0xff}, color.RGBA{0xe0, 0x82, 0x2a, 0xff}, color.RGBA{0x2f, 0xa0, 0x7a, 0xff},
	color.RGBA{0xc7, 0x67, 0xa3, 0xff}, color.RGBA{0x8a, 0x94, 0x9e, 0xff}, color.RGBA{0x9c, 0x7c, 0xe0, 0xff},
	color.RGBA{0xb8, 0x9a, 0x2c, 0xff}, color.RGBA{0xd0, 0x50, 0x4f, 0xff},
}

func colour(i int) color.Color { return palette[i%len(palette)] }

// saveSVG writes the plot that add fills, once for each theme: path-light.svg and path-dark.svg.
func saveSVG(path string, add func(p *plot.Plot) error) error {
	for _, t := range themes {
		p := t.plot()
		if err := add(p); err != nil {
			return err
		}
		canvas := vgsvg.New(plotWidth, plotHeight)
		whole := draw.New(canvas)
		whole.SetColor(t.background)
		whole.Fill(whole.Path())
		// Room for labels at the ends of the axes.
		p.Draw(draw.Crop(whole, vg.Millimeter, -5*vg.Millimeter, vg.Millimeter, -2*vg.Millimeter))
		var svg bytes.Buffer
		if _, err := canvas.WriteTo(&svg); err != nil {
			return err
		}
		// Without the font, browsers would fall back to one with serifs.
		text := bytes.ReplaceAll(svg.Bytes(), []byte("font-family:Liberation Sans;"),
			[]byte("font-family:Liberation Sans,Arial,sans-serif;"))
		if err := os.WriteFile(path+"-"+t.name+".svg", text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (t theme) plot() *plot.Plot {
	plot.DefaultFont.Variant = "Sans"
	p := plot.New()
	p.BackgroundColor = nil
	p.Title.TextStyle.Color, p.Legend.TextStyle.Color = t.ink, t.ink
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Color, axis.Tick.Color = t.ink, t.ink
		axis.Label.TextStyle.Color, axis.Tick.Label.Color = t.ink, t.ink
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = t.grid, t.grid
	p.Add(grid)
	return p
}
