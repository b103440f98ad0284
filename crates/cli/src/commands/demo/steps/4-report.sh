# The report, from the tables in .cantle-survey.
set -eu
export LC_ALL=C
rm -rf report.md # the files may have brought one of their own: a copy, already counted

awk -F '\t' '
  # A name as a code span in a table cell: a fence longer than its backticks, its pipes escaped.
  function code(name,  fence) {
    gsub(/\|/, "\\|", name)
    fence = "`"
    while (index(name, fence)) fence = fence "`"
    return fence == "`" ? fence name fence : fence " " name " " fence
  }
  function commas(n,  s, tail) {
    for (s = sprintf("%.0f", n); length(s) > 3; s = substr(s, 1, length(s) - 3))
      tail = "," substr(s, length(s) - 2) tail
    return s tail
  }
  function section(title, header, ruler) { printf "\n## %s\n\n%s\n%s\n", title, header, ruler }

  FNR == 1 { table = FILENAME; sub(/.*\//, "", table) }

  table == "files.tsv" {
    levels = gsub(/\//, "/", $5) + 1
    if (levels > depth) { depth = levels; deepest = $5 }
  }
  table == "totals.tsv" {
    if (FNR == 1) print "# File survey\n\n| | |\n|---|---:|"
    printf "| %s | %s |\n", $1, commas($2)
    total[$1] = $2
    if ($1 == "Empty files" && deepest != "") printf "| Deepest path | %s |\n", code(deepest)
  }
  table == "extensions.tsv" {
    if (FNR == 1) {
      section("By extension", "| Extension | Files | Bytes | Share | Lines |", "|---|---:|---:|---:|---:|")
    }
    share = total["Bytes"] ? sprintf("%.1f %%", 100 * $3 / total["Bytes"]) : "-"
    printf "| %s | %s | %s | %s | %s |\n", $1, commas($2), commas($3), share, commas($4)
  }
  table == "largest.tsv" {
    if (FNR == 1) section("Largest files", "| File | Bytes | Lines |", "|---|---:|---:|")
    printf "| %s | %s | %s |\n", code($5), commas($1), ($2 == "-" ? "binary" : commas($2))
  }
  table == "duplicates.tsv" {
    groups++
    spare += $1
    if (groups == 1) section("Identical files", "| Copies | Bytes each | Files |", "|---:|---:|---|")
    if (groups > 10) next
    list = code($4)
    for (i = 5; i <= NF; i++) list = list "<br>" code($i)
    if ($2 > 5) list = list "<br>and " commas($2 - 5) " more"
    printf "| %s | %s | %s |\n", commas($2), commas($3), list
  }
  END {
    if (groups) printf "\nGroups: %s. Bytes in surplus copies: %s.\n", commas(groups), commas(spare)
    print "\n![Bytes by extension](chart.svg)"
    print "\nLines are those of text files, that is files without a NUL byte inside."
  }
' .cantle-survey/files.tsv .cantle-survey/totals.tsv .cantle-survey/extensions.tsv \
  .cantle-survey/largest.tsv .cantle-survey/duplicates.tsv > report.md
grep '^#' report.md
