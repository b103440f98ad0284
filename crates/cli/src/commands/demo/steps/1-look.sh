# What is here, and do I have the tools to measure it?
ls -Ap | head -n 12
count() { find . -mindepth 1 -type "$1" -print0 | tr -dc '\000' | wc -c; }
echo "files: $(count f), directories: $(count d)"

missing=0
for tool in awk find grep paste sed sha256sum sort stat xargs; do
  command -v "$tool" > /dev/null || { echo "not installed: $tool" >&2; missing=1; }
done
exit $missing
