#!/usr/bin/env bash
# surroundings_test.sh CASE GDX GDX_DEMO: what gdx says of a machine that is not as it needs it.
. "$(dirname "$0")/../program.sh"
gdx=$2
gdx_demo=$3

# in_network SCRIPT: in a network of its own, whose loopback interface is down.
in_network() {
  local own=(unshare --net --user --map-root-user)
  [ "$(id -u)" -eq 0 ] && own=(unshare --net)
  "${own[@]}" true 2>/dev/null ||
    { echo "SKIPPED: no network namespace here: run it as root, or allow user namespaces"; exit 77; }
  run 100 "${own[@]}" bash -c "$1"
}

case $case_name in
  loopback_down)
    in_network "exec '$gdx' demo --max-bytes 512"
    expect_status 1 && expect 'loopback interface is down; .*ip link set lo up' && expect_one_line
    # With its address left behind.
    in_network "ip link set lo up && ip link set lo down && exec '$gdx' demo --max-bytes 512"
    expect_status 1 && expect 'loopback interface is down; .*ip link set lo up' && expect_one_line
    share_secret
    in_network "GDX_RANK=1 GDX_WORLD_SIZE=2 GDX_ROOT=127.0.0.1:5000 exec '$gdx' run -- '$gdx_demo' --max-bytes 512"
    expect_failure && expect 'loopback interface is down'
    ;;
  port_taken)
    in_network "ip link set lo up && exec python3 -c '
import socket, subprocess, sys
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taken.bind((\"0.0.0.0\", 4791))
sys.exit(subprocess.call(sys.argv[1:]))' '$gdx' run -- '$gdx' info"
    expect_failure && expect 'port 4791 is taken on all addresses, by user [0-9]* and no HCA' && expect_no 'or none'
    expect 'the software HCA is loaded and did not start' && expect_no 'run it under'
    ;;
  environment)
    # Each variable of gdx's own with a value that it has not. The line names the variable, or the value where that says more.
    for setting in ACK_TIMEOUT=99 ADAPTIVE_ROUTING=yes CALIBRATION=/nowhere CALL_TIMEOUT_S=x DAEMON=x DIRECT=no \
      DOORBELL=x EMULATION=x GID_INDEX=x GPU_MAPPING=x GPU_REGISTRATION=x HCA=gdx7 INSECURE=x PATH_CLASS=x PKEY=x \
      PROCESSES_PER_HCA=0 RETRY_COUNT=9 SERVICE_LEVEL=9 TRAFFIC_CLASS=256; do
      run 60 "$gdx" run -- env "GDX_$setting" "$gdx" info
      case $setting in HCA=* | CALIBRATION=*) named=${setting#*=} ;; *) named=GDX_${setting%%=*} ;; esac
      expect_failure && expect "$named" && expect_one_line
    done
    for setting in BOOTSTRAP_TIMEOUT_S=x RANK=x ROOT=x WORLD_SIZE=0; do
      run 60 "$gdx" run -- env "GDX_$setting" "$gdx" info
      expect_failure && expect "^  launch +refused: GDX_"
    done
    for program in "run -- $gdx info" "demo --modes pull --max-bytes 512" \
      "bench put_lat --modes pull --size 8 --rounds 1 --iters 8"; do
      run 100 env GDX_SOFTHCA_FAULT=dropped_force "$gdx" $program
      expect '(signals +| signals: ?)fenced|signals fenced'
    done
    ;;
  few_descriptors)
    run 100 bash -c "ulimit -n 16 && exec '$gdx' run -- '$gdx' info"
    expect_failure && expect_no 'run it under'
    ;;
  thread_sanitizer)
    runtime=$("${CXX:-c++}" -print-file-name=libtsan.so)
    [ -e "$runtime" ] || { echo "SKIPPED: no libtsan.so; install Debian's g++ to load it"; exit 77; }
    timeout 200 env LD_PRELOAD="$runtime" "$gdx" info >"$out" 2>&1
    expect 'this program has ThreadSanitizer and its gdx has not'
    ;;
  unread_fifo)
    mkfifo "$folder/capture"
    run 100 "$gdx" run --pcap "$folder/capture" -- "$gdx" info
    expect_failure && expect "nobody reads the FIFO $folder/capture"
    ;;
esac
echo "ok ($case_name)"
