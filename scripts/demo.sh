#!/usr/bin/env bash
# Train a translator on the embedded corpus in about three minutes, score it, translate a few lines.
# DEMO_SOURCE and DEMO_TARGET choose the locales, DEMO_OUT the directory; an interrupted demo is resumed.
set -euo pipefail
cd "$(dirname "$0")/.."
manyheads=.venv/bin/manyheads
source=${DEMO_SOURCE:-en} target=${DEMO_TARGET:-de}
out=${DEMO_OUT:-runs/demo-$source-$target}

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

if [ -f "$out/result.json" ]; then
  say "$out holds the trained model (rm -r $out to train again)"
  say "\$ manyheads evaluate $out"
  "$manyheads" evaluate "$out"
else
  say "\$ manyheads train translation source=$source target=$target --out $out"
  resume=$([ ! -d "$out/state" ] || echo --resume)
  "$manyheads" train translation "source=$source" "target=$target" --out "$out" $resume
fi

if [ "$source" = en ]; then
  say "\$ manyheads translate $out < lines"
  lines='March 5, 2031
3 hours ago
Italy, Japan, and Peru
€1,204.50'
  paste -d '|' <(printf '%s\n' "$lines") <("$manyheads" translate "$out" <<<"$lines") | sed 's/|/  ->  /'
fi

say "Now type"
hint() { printf '  %-68s %s\n' "$1" "$2"; }
hint ".venv/bin/manyheads translate $out \"July 4, 1999\"" "translate your own text"
hint ".venv/bin/manyheads translate $out --nbest 3 \"in 5 days\"" "show the three best, with scores"
hint ".venv/bin/manyheads summary $out" "show parameters and FLOPs"
hint ".venv/bin/manyheads recipes" "list what can be trained"
hint "make demo DEMO_TARGET=fr" "train another language pair"
