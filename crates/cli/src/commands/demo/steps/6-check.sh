# Read both files back: does the table of extensions add up to the totals, and is the chart whole?
set -eu
export LC_ALL=C
awk -F ' *[|] *' '
  { gsub(/,/, "") }
  /^## / { section = $0 }
  section == "" && ($2 == "Files" || $2 == "Bytes") { total[$2] = $3 }
  section == "## By extension" && $3 ~ /^[0-9]+$/ { files += $3; bytes += $4 }
  END {
    if (files + 0 != total["Files"] || bytes + 0 != total["Bytes"]) {
      print "report.md does not add up"
      exit 1
    }
    print "report.md adds up"
  }' report.md

bars=$(grep -c 'class="bar"' chart.svg || true)
rows=$(wc -l < .cantle-survey/extensions.tsv)
if [ "$bars" -ne "$rows" ] || [ "$(tail -n 1 chart.svg)" != "</svg>" ]; then
  echo "chart.svg is not whole"
  exit 1
fi
echo "chart.svg is whole"
