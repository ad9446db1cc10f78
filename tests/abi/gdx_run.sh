#!/usr/bin/env bash
# `gdx run` with all of its options of the HCA at once: what an unmodified program sees of each.
. "$(dirname "$0")/common.sh"
need ibv_devinfo
need ib_write_bw perftest
need tshark tshark

network=127.$((RANDOM % 200 + 20)).$((RANDOM % 250 + 2))

# Instead of preloading: the command that users type. Each end has addresses of its own, and a capture.
on_hca() {
  local end=server first=10
  [ "${!#}" != 127.0.0.1 ] || { end=client first=20; }
  timeout 150 "$GDX_TEST_GDX" run --hcas 2 --addr "$network.$first" --mtu 1024 --loss 0.01 \
    --pcap "$scratch/$end.pcap" -- "$@"
}

# Into a program that gains rights nothing is preloaded. root gains none by its own files.
if [ "$(id -u)" = 0 ]; then
  gains=$scratch/gains
  cp "$(type -P true)" "$gains" && chown 65534 "$gains" && chmod 4755 "$gains"
else
  gains=$(type -P su)
fi
timeout 150 "$GDX_TEST_GDX" run -- "$gains" --version > "$scratch/gained" 2>&1
grep -q 'nothing is preloaded into it' "$scratch/gained" || { cat "$scratch/gained"; fail "no word on a setuid program"; }

on_hca ibv_devinfo -v > "$scratch/devices" 2>&1 || { cat "$scratch/devices"; fail "ibv_devinfo exited with $?"; }
for gid in "$network.10" "$network.11"; do
  grep -q "::ffff:$gid," "$scratch/devices" || { cat "$scratch/devices"; fail "no HCA at $gid"; }
done
[ "$(grep -c 'active_mtu:.*1024' "$scratch/devices")" = 2 ] || fail "not two ports of MTU 1024"

both_ends ib_write_bw -d gdx1 -n 200 -s 65536 -F "${patience[@]}"
tshark -r "$scratch/client.gdx1.pcap" -Y 'infiniband.bth.opcode >= 6 && infiniband.bth.opcode <= 8' -T fields \
  -e ip.src -e ip.dst -e infiniband.bth.psn -e udp.length > "$scratch/writes" 2> /dev/null
packets=$(awk '{ print $3 }' "$scratch/writes" | sort -u | wc -l)
again=$(awk '{ print $3 }' "$scratch/writes" | sort | uniq -d | wc -l)
echo "$packets packets, $again of them sent again"
[ "$packets" -ge $((200 * 64)) ] || fail "not 64 packets a message: the MTU is another"
[ "$again" -gt 0 ] || fail "nothing was lost"
awk -v src="$network.21" -v dst="$network.11" '$1 != src || $2 != dst' "$scratch/writes" | head -3 | grep . &&
  fail "packets between other addresses than $network.21 and $network.11"
exit 0
