#!/usr/bin/env bash
# The proxy of the guide's two prefill and two decode nodes; put their addresses in. It runs on the first prefill node.
cd "$(dirname "$0")"
exec python3 load_balance_proxy_server_example.py \
  --port 1999 \
  --host 141.xx.xx.1 \
  --prefiller-hosts 141.xx.xx.1 141.xx.xx.1 141.xx.xx.2 141.xx.xx.2 \
  --prefiller-ports 7100 7101 7100 7101 \
  --decoder-hosts 141.xx.xx.3 141.xx.xx.3 141.xx.xx.3 141.xx.xx.3 141.xx.xx.3 141.xx.xx.3 141.xx.xx.3 141.xx.xx.3 141.xx.xx.3 141.xx.xx.3 141.xx.xx.3 141.xx.xx.3 141.xx.xx.3 141.xx.xx.3 141.xx.xx.3 141.xx.xx.3 \
  141.xx.xx.4 141.xx.xx.4 141.xx.xx.4 141.xx.xx.4 141.xx.xx.4 141.xx.xx.4 141.xx.xx.4 141.xx.xx.4 141.xx.xx.4 141.xx.xx.4 141.xx.xx.4 141.xx.xx.4 141.xx.xx.4 141.xx.xx.4 141.xx.xx.4 141.xx.xx.4 \
  --decoder-ports 7100 7101 7102 7103 7104 7105 7106 7107 7108 7109 7110 7111 7112 7113 7114 7115 \
  7100 7101 7102 7103 7104 7105 7106 7107 7108 7109 7110 7111 7112 7113 7114 7115
