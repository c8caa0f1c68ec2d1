#!/bin/bash
awk -F, '$2 == "north" { sum += $4 } END { print sum }' /app/orders.csv > /app/total.txt
