#!/usr/bin/env bash
# Lets the agents of these nodes join: makes a certificate, a key and a join token for each, and puts them into the Secret nsa-agents.
#
#   deploy/kubernetes/join_nodes.sh TLS_DIR NODE…     NODE as `kubectl get nodes` prints it; TLS_DIR as `nsactl admin init-tls` left it
#
# Run it where kubectl reaches the cluster, with nsactl in PATH. What the Secret already has for other nodes stays. A join token is valid once, and
# for an hour: within it the agent of that node makes a secret of its own, which stays on the node. Repeat the command for a node whose
# /var/lib/nsa was lost, after `nsactl token revoke NODE`.
set -euo pipefail

die() { printf 'join_nodes.sh: %s\n' "$*" >&2; exit 1; }

readonly NAMESPACE=nsa COORDINATOR=nsa-coordinator-0 SECRET=nsa-agents
case ${1:-} in -h | --help) sed -n '2,9p' "$0" | cut -c3-; exit 0 ;; esac
[ $# -ge 2 ] || die "a folder and one or more nodes; see --help"
readonly TLS=$1
shift
[ -f "$TLS/ca.key" ] || die "$TLS/ca.key: not found; make it with: nsactl admin init-tls $TLS --host nsa-coordinator.nsa.svc"

agents=()
for node in "$@"; do agents+=(--agent "$node"); done
nsactl admin init-tls "$TLS" --host nsa-coordinator.nsa.svc "${agents[@]}" >/dev/null

# One line "KEY: BASE64" for each file of the Secret. Nothing secret is an argument of a program.
entry() { printf '  "%s": ' "$1"; base64 -w0; echo; }

files() {
  local node token
  printf 'data:\n'
  entry ca.crt <"$TLS/ca.crt"
  for node in "$@"; do
    token=$(kubectl -n "$NAMESPACE" exec "$COORDINATOR" -c coordinator -- /opt/nsa/bin/nsactl token create --role agent --node "$node") ||
      die "$node: no join token; nothing was changed in the Secret"
    entry "$node.token" <<<"$token"
    entry "$node.crt" <"$TLS/$node.crt"
    entry "$node.key" <"$TLS/$node.key"
  done
}

patch=$(files "$@")
kubectl -n "$NAMESPACE" get secret "$SECRET" >/dev/null 2>&1 || kubectl -n "$NAMESPACE" create secret generic "$SECRET"
kubectl -n "$NAMESPACE" patch secret "$SECRET" --type merge --patch-file /dev/stdin <<<"$patch"
