#!/bin/bash
mkdir -p /logs/verifier
expected=$(grep -c ERROR /app/server.log)
if [ "$(tr -d '[:space:]' < /app/errors.txt)" = "$expected" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
