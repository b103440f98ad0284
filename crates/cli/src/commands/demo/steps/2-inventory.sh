# One line per file, in path order: bytes, lines ("-" in a binary file), checksum, extension, path.
set -eu
export LC_ALL=C
work=.cantle-survey
rm -rf $work && mkdir $work

# Links, pipes and devices are neither followed nor opened. A file name may hold
# anything but NUL, so the names stay NUL-separated until they are made printable.
find . -path ./$work -prune -o -type f ! -perm -400 -exec chmod u+r {} +
find . -path ./$work -prune -o -type f -print0 > $work/files0
cd $work
each() { (cd .. && xargs -0 -r "$@") < files0; }

# `grep -c` also answers "no match" for empty files: its exit code says nothing here.
each stat -c %s > bytes
each grep -hc '' > lines || true
each grep -hzc '' > chunks || true # more than one: there is a NUL inside, not a text
each sha256sum | sed -n 's/^\\\{0,1\}\([0-9a-f]*\)  \.\/.*/\1/p' > sums
tr '\001-\037\177' '?' < files0 | tr '\000' '\n' | sed 's/^\.\///' > paths

for column in bytes lines chunks sums; do
  [ "$(wc -l < $column)" -eq "$(wc -l < paths)" ] || { echo "not every file could be read ($column)" >&2; exit 1; }
done

paste bytes lines chunks sums paths | awk -F '\t' -v OFS='\t' '
  BEGIN {
    t = "[\200-\277]"
    utf8 = "^([ -~]|[\302-\337]" t "|\340[\240-\277]" t "|[\341-\354\356\357]" t t "|\355[\200-\237]" t \
      "|\360[\220-\277]" t t "|[\361-\363]" t t t "|\364[\200-\217]" t t ")*$"
  }
  {
    path = $5
    if (path !~ utf8) gsub(/[\200-\377]/, "?", path)
    ext = "(none)"
    name = path
    sub(/.*\//, "", name)
    if (match(name, /.\.[A-Za-z0-9_+-]+$/) && RLENGTH <= 18) ext = tolower(substr(name, RSTART + 2))
    print $1, ($3 > 1 ? "-" : $2), $4, ext, path
  }' | sort -t "$(printf '\t')" -k 5,5 > files.tsv

directories=$(find .. -mindepth 1 -path ../$work -prune -o -type d -print0 | tr -dc '\000' | wc -c)
awk -F '\t' -v directories="$directories" '
  { bytes += $1; lines += $2; text += ($2 != "-"); empty += ($1 == 0) }
  END {
    format = "%s\t%.0f\n"
    printf format, "Files", NR
    printf format, "Directories", directories
    printf format, "Bytes", bytes
    printf format, "Text files", text
    printf format, "Lines of text", lines
    printf format, "Empty files", empty
  }' files.tsv | tee totals.tsv
