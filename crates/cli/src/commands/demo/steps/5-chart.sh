# A bar per row of extensions.tsv, scaled to the largest. Extensions are letters, digits,
# "_", "+" and "-", so nothing in here needs XML escapes.
set -eu
export LC_ALL=C
rm -rf chart.svg
rows=$(wc -l < .cantle-survey/extensions.tsv)
height=$((rows > 0 ? 104 + 30 * rows : 126))

cat > chart.svg <<SVG
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 $height" width="760" height="$height" role="img">
<title>Bytes by extension</title>
<style>
  text { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
  .title { font-size: 19px; font-weight: 600 }
  .dim { fill: #59636e }
  .page { fill: #ffffff }
  .track { fill: #eff2f5 }
  .bar { fill: #3d7edb }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .dim { fill: #9198a1 }
    .page { fill: #0d1117 }
    .track { fill: #1b222c }
    .bar { fill: #5b9bf0 }
  }
</style>
<rect class="page" width="760" height="$height" rx="10"/>
<text class="title" x="24" y="38">Bytes by extension</text>
SVG

awk -F '\t' '
  function human(n,  unit) {
    if (n < 1000) return n " B"
    for (unit = 0; n >= 999.95 && unit < 4; unit++) n /= 1000
    return sprintf("%.1f %s", n, substr("kBMBGBTB", 2 * unit - 1, 2))
  }
  function count(n) { return n (n == 1 ? " file" : " files") }

  { ext[NR] = $1; files[NR] = $2; bytes[NR] = $3; all_files += $2; all_bytes += $3; if ($3 > most) most = $3 }
  END {
    printf "<text class=\"dim\" x=\"24\" y=\"62\">%s, %s</text>\n", count(all_files + 0), human(all_bytes + 0)
    if (NR == 0) print "<text class=\"dim\" x=\"24\" y=\"98\">Nothing to draw.</text>"
    for (i = 1; i <= NR; i++) {
      y = 56 + 30 * i
      width = most ? 340 * bytes[i] / most : 0
      printf "<text x=\"158\" y=\"%d\" text-anchor=\"end\">%s</text>", y + 15, ext[i]
      printf "<rect class=\"track\" x=\"172\" y=\"%d\" width=\"340\" height=\"20\" rx=\"3\"/>", y
      printf "<rect class=\"bar\" x=\"172\" y=\"%d\" width=\"%.1f\" height=\"20\" rx=\"3\"/>", y, width
      printf "<text x=\"608\" y=\"%d\" text-anchor=\"end\">%s</text>", y + 15, human(bytes[i])
      printf "<text class=\"dim\" x=\"732\" y=\"%d\" text-anchor=\"end\">%s</text>\n", y + 15, count(files[i])
    }
    print "</svg>"
  }
' .cantle-survey/extensions.tsv >> chart.svg
echo "chart.svg: bars $rows, bytes $(wc -c < chart.svg)"
