#!/usr/bin/env bash
# Compares NSA_THREAD_ROOMS (cmake/NsaTargets.cmake), whose unit tests run under ThreadSanitizer, with the code: every room that has threads, locks or
# atomics is named, if it has unit tests, and no other.
# Run: tests/thread_rooms_test.sh; with --self-test it proves that it can fail.
set -euo pipefail
cd "$(dirname "$0")/.."

# compare ROOMS LISTED FILES: the rooms with unit tests, those in NSA_THREAD_ROOMS, and the sources with threads. Prints what differs.
compare() {
  awk -v rooms="$1" -v listed="$2" '
    BEGIN {
      count = split(rooms, room, " ")
      split(listed, name, " ")
      for (i in name) in_list[name[i]] = 1
    }
    { # The longest room that the file lies in.
      best = ""
      for (i = 1; i <= count; ++i) if (index($0, room[i] "/") == 1 && length(room[i]) > length(best)) best = room[i]
      if (best != "") { if (!(best in has)) example[best] = $0; has[best] = 1 }
    }
    END {
      for (r in has) if (!(r in in_list)) print r ": " example[r] " has threads or locks; name the room in NSA_THREAD_ROOMS (cmake/NsaTargets.cmake)"
      for (r in in_list) if (!(r in has)) print r ": in NSA_THREAD_ROOMS, and none of its sources has threads or locks"
    }' <<<"$3"
}

if [ "${1:-}" = --self-test ]; then
  expect() { # NAME WANTED ROOMS LISTED FILES
    local found
    found=$(compare "$3" "$4" "$5" | grep -c . || true)
    [ "$found" = "$2" ] || { echo "self test: $1: $found complaints ($2 wanted)"; exit 1; }
  }
  expect good 0 'a a/b c' 'a/b' 'a/b/x.cc'
  expect missing 1 'a a/b c' 'a/b' $'a/b/x.cc\nc/d/y.h'
  expect unneeded 1 'a a/b c' 'a a/b' 'a/b/x.cc'
  expect 'outside of the rooms' 0 'a' 'a' $'a/x.cc\nz/x.cc'
fi

words='std::(jthread|thread|mutex|shared_mutex|condition_variable|atomic|atomic_ref)\b|absl::Mutex|common/base/mutex\.h|pthread_'
rooms=$(git ls-files '*CMakeLists.txt' | grep '^tests/' | xargs sed -nE 's/^ *nsa_tests\(([^ )]+).*/\1/p' | tr '\n' ' ')
listed=$(sed -nE '/^set\(NSA_THREAD_ROOMS/,/\)/p' cmake/NsaTargets.cmake | sed 's/set(NSA_THREAD_ROOMS//; s/)//' | tr '\n' ' ')
files=$(git grep -lE "$words" -- common server worker client ':!*.md' | grep -E '\.(h|cc)$')
problems=$(compare "$rooms" "$listed" "$files")
[ -z "$problems" ] || { echo "$problems"; exit 1; }
