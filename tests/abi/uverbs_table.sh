#!/usr/bin/env bash
# Usage: uverbs_table.sh headers FOLDER: every id in the kernel headers of FOLDER has a row in uverbs_table.txt; one
#                        that is new to the table fails.
#        uverbs_table.sh hca: the software HCA answers every id as its row says.
. "$(dirname "$0")/common.sh"
need python3 python3
here=$(cd "$(dirname "$0")" && pwd)
table() { python3 "$here/uverbs_table.py" "$here/uverbs_table.txt" "$@"; }

if [ "$1" = headers ]; then
  headers=${GDX_TEST_RDMA_HEADERS:-$2}
  table headers "$headers" || exit 1
  # One more id in each header.
  mkdir "$scratch/rdma"
  for name in UVERBS_OBJECT_NEW:ib_user_ioctl_cmds MLX5_IB_ATTR_NEW:mlx5_user_ioctl_cmds IB_USER_VERBS_CMD_NEW:ib_user_verbs; do
    cp "$headers"/rdma/*.h "$scratch/rdma"
    echo "enum new_ids { ${name%:*} = (1U << UVERBS_ID_NS_SHIFT), };" >> "$scratch/rdma/${name#*:}.h"
    table headers "$scratch" > "$scratch/out" && fail "${name%:*} passes without a row"
    grep -q "${name#*:}.h names ${name%:*} (0x1000), for which uverbs_table.txt has no row" "$scratch/out" ||
      { cat "$scratch/out"; fail "${name%:*} is not named"; }
  done
  cp "$headers"/rdma/*.h "$scratch/rdma"
  echo 'enum new_ids { UVERBS_OTHERWISE_NAMED = 5 };' >> "$scratch/rdma/ib_user_ioctl_cmds.h"
  table headers "$scratch" > "$scratch/out" && fail "an id whose name says nothing passes"
  grep -q 'names UVERBS_OTHERWISE_NAMED (0x0005), which is no id that' "$scratch/out" ||
    { cat "$scratch/out"; fail "an id whose name says nothing is not named"; }
  exit 0
fi
export GDX_LOG=error
on_hca python3 "$here/uverbs_table.py" "$here/uverbs_table.txt" hca || exit 1
exit 0
