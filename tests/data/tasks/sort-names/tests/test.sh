#!/bin/bash
mkdir -p /logs/verifier
if [ "$(cat /app/sorted.txt)" = "$(sort -u /app/names.txt)" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
