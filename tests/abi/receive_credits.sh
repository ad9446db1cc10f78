#!/usr/bin/env bash
# Usage: receive_credits.sh [0]. ib_send_bw to a receiver with eight receives, captured. What tshark reads must
# show that ACKs count receives, and that no message which they permitted was refused. 0: the receiver
# advertises nothing, and every ACK must say so.
. "$(dirname "$0")/common.sh"
need ib_send_bw perftest
need tshark tshark
receives=8
messages=400
export GDX_SOFTHCA_PCAP=$scratch/%p.pcap GDX_SOFTHCA_RECEIVE_CREDITS=${1:-1}
both_ends ib_send_bw -F -s 64 -n $messages -r $receives -t 32 "${patience[@]}"

# One capture for each process; each sees both directions. Of either, the answers that the other end got.
for capture in "$scratch"/*.pcap; do
  tshark -r "$capture" -Y 'infiniband.bth.opcode == 17' -T fields -e ip.dst -e infiniband.aeth.syndrome \
    -e infiniband.aeth.msn -e infiniband.aeth.syndrome.opcode 2> /dev/null
  break
done > "$scratch/answers"
[ -s "$scratch/answers" ] || fail "tshark finds no acknowledgement"

awk -v receives=$receives -v advertises="$GDX_SOFTHCA_RECEIVE_CREDITS" '
  function count(code) { return code < 2 ? code : (2 + code % 2) * 2 ^ (int(code / 2) - 1) }
  { syndrome = $2 + 0; msn = $3 + 0 }
  syndrome < 32 && !advertises && syndrome != 31 { print "code " syndrome " although none are advertised"; bad = 1 }
  syndrome < 31 { counted++; if (count(syndrome) > receives) { print "counts " count(syndrome); bad = 1 }
                  if (msn + count(syndrome) > permitted[$1]) permitted[$1] = msn + count(syndrome) }
  syndrome >= 32 && syndrome < 64 && advertises { refused++
    if (msn + 1 <= permitted[$1]) { print "message " msn + 1 " was permitted and refused"; bad = 1 } }
  END { print counted + 0 " counts of receives, " refused + 0 " refusals of what was not permitted"
        exit bad || (advertises && !counted) }' "$scratch/answers" || fail "the capture breaks the promise"
