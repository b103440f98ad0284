# Files, bytes and lines per extension, the largest first; at most twelve rows.
set -eu
export LC_ALL=C
cd .cantle-survey
awk -F '\t' '
  { files[$4]++; bytes[$4] += $1; lines[$4] += $2 }
  END { for (ext in files) printf "%s\t%d\t%.0f\t%.0f\n", ext, files[ext], bytes[ext], lines[ext] }
' files.tsv | sort -t "$(printf '\t')" -k 3,3nr -k 1,1 > all-extensions.tsv

awk -F '\t' -v rows="$(wc -l < all-extensions.tsv)" '
  rows <= 12 || NR < 12 { print; next }
  { files += $2; bytes += $3; lines += $4 }
  END { if (rows > 12) printf "(%d others)\t%d\t%.0f\t%.0f\n", rows - 11, files, bytes, lines }
' all-extensions.tsv > extensions.tsv
head -n 5 extensions.tsv
