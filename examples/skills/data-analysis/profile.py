"""Prints a profile of each column of a CSV file. Uses the standard library only."""

import argparse
import collections
import csv
import datetime
import statistics
import sys

MISSING = {"", "na", "n/a", "nan", "null", "none", "-"}
# Beyond this number of distinct values, a column's frequencies are not counted.
MAX_DISTINCT = 10_000


class Column:
    def __init__(self, name):
        self.name = name
        self.missing = 0
        self.numbers = []
        self.dates = []
        self.texts = 0
        self.counts = collections.Counter()
        self.is_cut = False

    def add(self, value):
        value = value.strip()
        if value.lower() in MISSING:
            self.missing += 1
            return
        if value in self.counts or len(self.counts) < MAX_DISTINCT:
            self.counts[value] += 1
        else:
            self.is_cut = True
        try:
            self.numbers.append(float(value))
            return
        except ValueError:
            pass
        try:
            self.dates.append(datetime.date.fromisoformat(value[:10]))
        except ValueError:
            self.texts += 1

    def lines(self):
        values = len(self.numbers) + len(self.dates) + self.texts
        distinct = f"{'over ' if self.is_cut else ''}{len(self.counts)}"
        if values and len(self.numbers) == values:
            kind = "number"
        elif values and len(self.dates) == values:
            kind = "date"
        elif values and (self.numbers or self.dates):
            others = [("number", len(self.numbers)), ("date", len(self.dates)), ("text", self.texts)]
            kind = "mixed: " + ", ".join(f"{count} {name}" for name, count in others if count)
        else:
            kind = "text" if values else "empty"
        yield f"{self.name}: {kind}, {values} values, {self.missing} missing, {distinct} distinct"
        if kind == "number":
            numbers = self.numbers
            yield (
                f"  min {min(numbers):g}, median {statistics.median(numbers):g}, "
                f"mean {statistics.fmean(numbers):g}, max {max(numbers):g}"
            )
        elif kind == "date":
            yield f"  first {min(self.dates)}, last {max(self.dates)}"
        elif values:
            frequent = (f"{value!r} ({count})" for value, count in self.counts.most_common(5))
            yield "  most frequent: " + ", ".join(frequent)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--delimiter", default=",")
    parser.add_argument("--rows", type=int, help="number of rows to read")
    args = parser.parse_args()
    with open(args.file, newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file, delimiter=args.delimiter)
        header = next(reader, None)
        if not header:
            sys.exit(f"{args.file} has no header")
        columns = [Column(name.strip() or f"column {index}") for index, name in enumerate(header, 1)]
        rows = irregular = 0
        for row in reader:
            if args.rows is not None and rows >= args.rows:
                break
            rows += 1
            irregular += len(row) != len(columns)
            for column, value in zip(columns, row):
                column.add(value)
    print(f"{rows} rows, {len(columns)} columns, {irregular} rows of another length")
    for column in columns:
        print("\n".join(column.lines()))


if __name__ == "__main__":
    main()
