# Fits a line to the points by gradient descent. Rung gives the hyperparameters by RUNG_HPARAMS and
# the length by RUNG_LENGTH; `rung report` answers `leave` when it is time to go.
set -e
hparams=${RUNG_HPARAMS:-'{"rate":0.02}'}
rate=$(echo "$hparams" | sed 's/.*"rate": *\([^,}]*\).*/\1/')
mkdir -p state
step=$(rung checkpoint restore state)
[ "$step" -gt 0 ] || echo "0 0" > state/line

while [ "$step" -lt "${RUNG_LENGTH:-10}" ]; do
    step=$((step + 1))
    awk -F, -v rate="$rate" '
        NR == FNR { split($0, line, " "); a = line[1]; b = line[2]; next }
        { off = a * $1 + b - $2; da += off * $1; db += off; error += off * off; n += 1 }
        END { printf "%.9g %.9g %.9g\n", a - rate * da / n, b - rate * db / n, error / n }
    ' state/line points.csv > new
    read -r a b error < new
    echo "$a $b" > state/line
    told=$(rung report --step "$step" --validation "error=$error")
    if [ "$told" = leave ]; then break; fi
done
rung checkpoint save --step "$step" state
