# What every target of gdx is built with. A target opts in by name: there are no global flags.
function(gdx_target name)
  get_target_property(type ${name} TYPE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    target_compile_features(${name} INTERFACE cxx_std_20)
    target_include_directories(${name} INTERFACE
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/gdx>)
    return()
  endif()
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/gdx>)
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion>)
  if(GDX_WERROR)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
  if(GDX_SANITIZER)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:
      -fsanitize=${GDX_SANITIZER} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
    target_link_options(${name} PRIVATE -fsanitize=${GDX_SANITIZER})
  endif()
endfunction()

# gdx_label(LABEL TARGET...): tests of LABEL run these, or load them; `./run test -L LABEL` builds gdx_tests_LABEL.
function(gdx_label label)
  if(NOT TARGET gdx_tests_${label})
    add_custom_target(gdx_tests_${label})
  endif()
  add_dependencies(gdx_tests_${label} ${ARGN})
endfunction()

# A GoogleTest binary whose tests all carry one CTest label, the folder's name.
function(gdx_test name label)
  cmake_parse_arguments(arg "" "TIMEOUT_S" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  gdx_target(${name})
  gdx_label(${label} ${name})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
  if(TARGET gdx_gtest_headers)
    target_precompile_headers(${name} REUSE_FROM gdx_gtest_headers)
  endif()
  if(NOT arg_TIMEOUT_S)
    set(arg_TIMEOUT_S 60)
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 30 PROPERTIES LABELS ${label} TIMEOUT ${arg_TIMEOUT_S})
endfunction()

# A sanitizer's runtime must be the first library of a process; a preloaded one comes earlier still.
set(GDX_SANITIZER_RUNTIME "")
if(GDX_SANITIZER MATCHES "address")
  set(GDX_SANITIZER_RUNTIME libasan.so)
elseif(GDX_SANITIZER MATCHES "thread")
  set(GDX_SANITIZER_RUNTIME libtsan.so)
endif()
if(GDX_SANITIZER_RUNTIME)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${GDX_SANITIZER_RUNTIME}
    OUTPUT_VARIABLE GDX_SANITIZER_RUNTIME OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()

# What LD_PRELOAD must say for a program of this build, or a foreign one, to run on the software HCA.
set(GDX_SOFTHCA_PRELOAD $<TARGET_FILE:gdx_softhca>)
if(GDX_SANITIZER_RUNTIME)
  string(PREPEND GDX_SOFTHCA_PRELOAD ${GDX_SANITIZER_RUNTIME}:)
endif()

# Runs a test binary on the software HCA, with variables of its HCA as `NAME=VALUE`.
#   gdx_discover_on_softhca(target label [SUFFIX suffix] [VARIABLES NAME=VALUE...])
function(gdx_discover_on_softhca name label)
  cmake_parse_arguments(arg "" "SUFFIX" "VARIABLES" ${ARGN})
  # What this machine was calibrated to is nothing to a test.
  set(environment "LD_PRELOAD=${GDX_SOFTHCA_PRELOAD}" "GDX_CALIBRATION=" ${arg_VARIABLES})
  set(tests ${name}${arg_SUFFIX}_TESTS)
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 30 TEST_SUFFIX "${arg_SUFFIX}" TEST_LIST ${tests}
    PROPERTIES LABELS ${label} TIMEOUT 120)
  # Not as one of those properties: there a list of variables falls apart, and all but the first are lost.
  set(script ${CMAKE_CURRENT_BINARY_DIR}/${tests}.cmake)
  file(GENERATE OUTPUT ${script} CONTENT "if(${tests})
  set_tests_properties(\${${tests}} PROPERTIES ENVIRONMENT \"${environment}\")
endif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${script})
endfunction()

# As gdx_test, on the software HCA. At build time the binary only lists its tests, which needs no HCA.
function(gdx_softhca_test name label)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES;VARIABLES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  gdx_target(${name})
  gdx_label(${label} ${name})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
  if(TARGET gdx_gtest_headers)
    target_precompile_headers(${name} REUSE_FROM gdx_gtest_headers)
  endif()
  add_dependencies(${name} gdx_softhca)
  gdx_discover_on_softhca(${name} ${label} VARIABLES ${arg_VARIABLES})
endfunction()
