#!/bin/sh
echo "time $1.5 s"
