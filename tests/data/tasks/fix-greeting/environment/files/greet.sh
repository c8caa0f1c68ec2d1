#!/bin/sh
name="$2"
echo "Hello, ${name}!"
