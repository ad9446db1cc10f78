# Tests of the tree: each has a kind, which is its folder, and a tier. Both are CTest labels.
#
# fast: `./run test`. full: `./run test --full`, in CI too. nightly: by shards, tests/nightly.
set(GDX_FAST_KINDS tidy unit sim demo)
set(GDX_NIGHTLY_KINDS mutant model interop papers install matrix)

# The tier of a test that names none.
function(gdx_tier_of kind tier result)
  if(NOT tier AND kind IN_LIST GDX_FAST_KINDS)
    set(tier fast)
  elseif(NOT tier AND kind IN_LIST GDX_NIGHTLY_KINDS)
    set(tier nightly)
  elseif(NOT tier)
    set(tier full)
  endif()
  if(NOT tier MATCHES "^(fast|full|nightly)$")
    message(FATAL_ERROR "tier '${tier}': use fast, full or nightly")
  endif()
  set(${result} ${tier} PARENT_SCOPE)
endfunction()

# Appends the label sanitized to what CI runs under the sanitizer of this build: nothing of the nightly tier.
# ThreadSanitizer has nothing to find in the folders below: they start no thread, or threads (cli, doctor) that the tests of
# e2e and demo start, too.
set(GDX_FOLDERS_WITHOUT_THREADS tests/cli tests/sim tests/unit/calibration tests/unit/cm tests/unit/devx
  tests/unit/doctor tests/unit/pcie tests/unit/roce tests/unit/transport)
function(gdx_sanitized kind tier result)
  set(sanitized OFF)
  if((kind MATCHES "^(unit|e2e)$" AND NOT tier STREQUAL "nightly") OR
     (kind MATCHES "^(sim|demo)$" AND tier STREQUAL "fast"))
    set(sanitized ON)
  endif()
  if(GDX_SANITIZER STREQUAL "thread")
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
    foreach(single ${GDX_FOLDERS_WITHOUT_THREADS})
      if(folder MATCHES "^${single}")
        set(sanitized OFF)
      endif()
    endforeach()
  endif()
  if(sanitized)
    set(${result} ${${result}} sanitized PARENT_SCOPE)
  endif()
endfunction()

# gdx_test_needs(LABEL TARGET...): what to build for the tests of a kind or a tier, gdx_tests_LABEL.
function(gdx_test_needs label)
  if(NOT TARGET gdx_tests_${label})
    add_custom_target(gdx_tests_${label})
  endif()
  if(ARGN)
    add_dependencies(gdx_tests_${label} ${ARGN})
  endif()
endfunction()

# gdx_add_test(NAME KIND COMMAND WORD... [TIER fast|full|nightly] [TIMEOUT_S 300] [NEEDS TARGET...] [SERIAL]
#              [ENVIRONMENT NAME=VALUE...] [REALTIME REASON])
# SERIAL: one such test at a time, beside others that are not. TIMEOUT_S is for a hang, which no load may look like;
# sanitizers have three times as long. REALTIME: its verdict comes from elapsed time, and REASON says why no other clock
# would do; a label too. Where it was only too slow, it has a second try (tests/realtime.sh).
# Exit status 77 is a skip; the command prints its reason. Tests are strict, except under ThreadSanitizer, because the
# lock of the recorder (device/exec/nic_stores.h) would order the watched stores.
set(GDX_STRICT_ENVIRONMENT "")
if(NOT GDX_SANITIZER STREQUAL "thread")
  set(GDX_STRICT_ENVIRONMENT GDX_STRICT=1)
endif()
function(gdx_add_test name kind)
  cmake_parse_arguments(PARSE_ARGV 2 arg "SERIAL" "TIER;TIMEOUT_S;REALTIME" "COMMAND;NEEDS;ENVIRONMENT")
  gdx_tier_of(${kind} "${arg_TIER}" tier)
  if(NOT arg_TIMEOUT_S)
    set(arg_TIMEOUT_S 300)
  endif()
  if(GDX_SANITIZER)
    math(EXPR arg_TIMEOUT_S "3 * ${arg_TIMEOUT_S}")
  endif()
  set(labels ${kind} ${tier})
  if(arg_REALTIME)
    list(APPEND labels realtime)
    list(POP_FRONT arg_COMMAND program)
    if(TARGET ${program})
      set(program $<TARGET_FILE:${program}>)
    endif()
    list(PREPEND arg_COMMAND bash ${PROJECT_SOURCE_DIR}/tests/realtime.sh ${program})
  endif()
  add_test(NAME ${name} COMMAND ${arg_COMMAND})
  gdx_sanitized(${kind} ${tier} labels)
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${arg_TIMEOUT_S} SKIP_RETURN_CODE 77)
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "${GDX_STRICT_ENVIRONMENT};${arg_ENVIRONMENT}")
  if(arg_SERIAL)
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK serial)
  endif()
  foreach(label ${labels})
    gdx_test_needs(${label} ${arg_NEEDS})
  endforeach()
endfunction()

# Compiling test code costs more than running it. GoogleTest's headers are parsed once, and code is not optimised;
# under a sanitizer that holds for OPTIMISED code too, where it is no simulation.
# Unoptimised, GCC 12 gives no false warnings of precompiled headers.
set(GDX_TEST_OPTIONS $<$<NOT:$<CONFIG:Release>>:-O0>)
add_executable(gdx_gtest_headers ${PROJECT_SOURCE_DIR}/cmake/no_code.cpp)
gdx_target(gdx_gtest_headers)
target_compile_options(gdx_gtest_headers PRIVATE ${GDX_TEST_OPTIONS} ${GDX_PRECOMPILED_OPTIONS})
target_link_libraries(gdx_gtest_headers PRIVATE GTest::gmock GTest::gtest_main)
target_precompile_headers(gdx_gtest_headers PRIVATE <gmock/gmock.h> <gtest/gtest.h> <algorithm> <array> <atomic>
  <chrono> <cstdint> <cstring> <deque> <functional> <map> <memory> <mutex> <optional> <random> <span> <string> <vector>)

# gdx_test(NAME KIND SOURCES ... LIBRARIES ... [TIER ...] [TIMEOUT_S 300] [SHARDS 1] [NEEDS TARGET...]
#          [ENVIRONMENT NAME=VALUE...] [THREADS_IN FILTER] [SOFTHCA] [OPTIMISED] [REALTIME REASON])
# A GoogleTest binary: one CTest test, or SHARDS tests that share its cases. SOFTHCA: with the software HCA below it.
# THREADS_IN: the cases that start threads, which ThreadSanitizer runs alone, because it slows the others ten times.
# OPTIMISED: its code runs long, or holds code of the product: device headers, sources compiled again.
function(gdx_test name kind)
  cmake_parse_arguments(PARSE_ARGV 2 arg "SOFTHCA;OPTIMISED" "TIER;TIMEOUT_S;SHARDS;THREADS_IN;REALTIME"
    "SOURCES;LIBRARIES;NEEDS;ENVIRONMENT")
  add_executable(${name} ${arg_SOURCES})
  gdx_target(${name})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
  if(NOT arg_OPTIMISED OR (GDX_SANITIZER AND NOT kind STREQUAL "sim"))
    target_compile_options(${name} PRIVATE ${GDX_TEST_OPTIONS} ${GDX_PRECOMPILED_OPTIONS})
    target_precompile_headers(${name} REUSE_FROM gdx_gtest_headers)
  endif()
  set(softhca "")
  if(arg_SOFTHCA)
    set(softhca SOFTHCA)
  endif()
  if(arg_THREADS_IN AND GDX_SANITIZER STREQUAL "thread")
    list(APPEND arg_ENVIRONMENT GTEST_FILTER=${arg_THREADS_IN})
  endif()
  gdx_run_test(${name} ${kind} ${softhca} TIER "${arg_TIER}" TIMEOUT_S "${arg_TIMEOUT_S}" SHARDS "${arg_SHARDS}"
    REALTIME "${arg_REALTIME}" NEEDS ${arg_NEEDS} ENVIRONMENT ${arg_ENVIRONMENT})
endfunction()

# gdx_run_test(TARGET KIND [SUFFIX .SUFFIX] [options of gdx_test]): runs a GoogleTest binary with an environment of its own.
function(gdx_run_test name kind)
  cmake_parse_arguments(PARSE_ARGV 2 arg "SOFTHCA" "TIER;TIMEOUT_S;SHARDS;SUFFIX;REALTIME" "NEEDS;ENVIRONMENT")
  if(arg_SOFTHCA)
    # Calibrations of this machine must not change a test.
    list(APPEND arg_ENVIRONMENT LD_PRELOAD=${GDX_SOFTHCA_PRELOAD} GDX_CALIBRATION=)
    list(APPEND arg_NEEDS gdx_softhca)
    if(kind STREQUAL "e2e")
      list(PREPEND arg_ENVIRONMENT GDX_CALL_TIMEOUT_S=60)
    endif()
  endif()
  if(NOT arg_SHARDS)
    set(arg_SHARDS 1)
  endif()
  if(arg_NEEDS)
    add_dependencies(${name} ${arg_NEEDS})
  endif()
  foreach(shard RANGE 1 ${arg_SHARDS})
    math(EXPR index "${shard} - 1")
    set(test ${name}${arg_SUFFIX})
    set(environment GTEST_BRIEF=1 ${arg_ENVIRONMENT})
    if(arg_SHARDS GREATER 1)
      string(APPEND test .${shard})
      list(APPEND environment GTEST_TOTAL_SHARDS=${arg_SHARDS} GTEST_SHARD_INDEX=${index})
    endif()
    gdx_add_test(${test} ${kind} TIER "${arg_TIER}" COMMAND ${name} TIMEOUT_S "${arg_TIMEOUT_S}" REALTIME "${arg_REALTIME}"
      NEEDS ${name} ${arg_NEEDS} ENVIRONMENT ${environment})
  endforeach()
endfunction()

