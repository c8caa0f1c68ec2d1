#!/bin/bash
# Runs the tests of a Terminal-Bench 1 task and turns pytest's short summary into a reward.
log=$(mktemp)
timeout -k 5 "$ARISE_TEST_TIMEOUT_S" bash /tests/run-tests.sh >"$log" 2>&1
echo "run-tests.sh: exit code $?"
tail -c 20000 "$log"
awk '
  /=+ *short test summary info *=+/ { seen = 1; good = bad = 0; next }
  seen && /^(PASSED|XFAIL|SKIPPED)[ :]/ { good++ }
  seen && /^(FAILED|ERROR|XPASS)[ :]/ { bad++ }
  END { print (seen && good > 0 && bad == 0) ? 1 : 0 }
' "$log" >/logs/verifier/reward.txt
