#!/usr/bin/env bash
# Configuration, rules and alerts of examples/monitoring under promtool; exit code 77 (skipped) where there is none.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v promtool >/dev/null || { echo "skipped: there is no promtool here; tools/install.sh long brings it"; exit 77; }
promtool check config examples/monitoring/prometheus.yml
promtool check rules examples/monitoring/recording.yml examples/monitoring/alerts.yml
promtool test rules tests/monitoring/alerts_test.yml
