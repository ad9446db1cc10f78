#!/usr/bin/env bash
# exports_test.sh LIBRARY MAP REFERENCE: LIBRARY exports the names that MAP lists, each of them, and no other. MAP lists
# the calls of REFERENCE, a page by docs/reference.py, that are compiled into the archives beside LIBRARY.
set -u
listed=$(sed -n 's/^ *"\(.*\)";$/\1/p' "$2" | LC_ALL=C sort)
exported=$(nm -D -C --defined-only "$1" | sed -n 's/^[0-9a-f]* [^A] \(.*\)@@LIBGDX_0$/\1/p' | LC_ALL=C sort -u)
others=$(nm -D -C --defined-only "$1" | grep -v -e '@@LIBGDX_0$' -e ' A LIBGDX_0$')
[ -n "$listed" ] || { echo "FAILED: $2 lists no name" >&2 && exit 1; }
[ -z "$others" ] || { echo "FAILED: exported without a version: $others" >&2 && exit 1; }
diff <(echo "$listed") <(echo "$exported") ||
  { echo "FAILED: < names of $2 that $1 does not export; > names that it exports beside them" >&2 && exit 1; }

# Headings of the page: "### `Class`", with "#### `call`" of the class below it, and "### `call`".
calls=$(sed -n -e 's/^\(###*\) `\([^`(]*\)`$/\1 \2/p' "$3" | awk '$1 == "###" { class = $2; print "gdx::" $2 }
  $1 == "####" { print "gdx::" class "::" $2 }')
compiled=$(nm -C --defined-only "$(dirname "$1")"/*/libgdx_*.a 2>/dev/null | sed -n 's/^[0-9a-f]* T \(gdx::.*\)$/\1/p' | sort -u)
[ -n "$calls" ] && [ -n "$compiled" ] || { echo "FAILED: no calls in $3, or no archives beside $1" >&2 && exit 1; }
# Members that take an Impl or a Pool are private.
missing=$(grep -vE '::(Impl|Pool)\b' <<<"$compiled" | while read -r name; do
  call=${name%%(*}
  grep -qxF "${call%\[abi:cxx11\]}" <<<"$calls" && ! grep -qxF "$name" <<<"$listed" && echo "$name"
done)
[ -z "$missing" ] || { printf 'FAILED: public calls that %s does not list:\n%s\n' "$2" "$missing" >&2 && exit 1; }
