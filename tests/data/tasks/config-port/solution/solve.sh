#!/bin/bash
sed -i 's/2222/8473/' /app/app.ini
