# The ten largest files, and the groups of files with the same content.
set -eu
export LC_ALL=C
tab=$(printf '\t')
cd .cantle-survey
sort -t "$tab" -k 1,1nr -k 5,5 files.tsv | head -n 10 > largest.tsv

# Per group: bytes that could be saved, copies, bytes of one, up to five of the paths.
awk -F '\t' '
  $1 > 0 {
    if (!copies[$3]++) { order[++groups] = $3; size[$3] = $1 }
    if (copies[$3] <= 5) paths[$3] = paths[$3] "\t" $5
  }
  END {
    for (i = 1; i <= groups; i++) {
      sum = order[i]
      if (copies[sum] > 1)
        printf "%.0f\t%d\t%.0f%s\n", (copies[sum] - 1) * size[sum], copies[sum], size[sum], paths[sum]
    }
  }' files.tsv | sort -t "$tab" -k 1,1nr -k 4,4 > duplicates.tsv

cut -f 1,5 largest.tsv | head -n 3
echo "groups of identical files: $(wc -l < duplicates.tsv)"
