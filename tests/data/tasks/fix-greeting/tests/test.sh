#!/bin/bash
mkdir -p /logs/verifier
if [ "$(sh /app/greet.sh Ada)" = "Hello, Ada!" ] && [ "$(sh /app/greet.sh Bo)" = "Hello, Bo!" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
