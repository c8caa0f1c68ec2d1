#!/bin/bash
mkdir -p /logs/verifier
expected=$(printf '[client]\nport = 1111\n\n[server]\nhost = localhost\nport = 8473')
if [ "$(cat /app/app.ini)" = "$expected" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
