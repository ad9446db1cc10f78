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

# A GoogleTest binary whose tests all carry one CTest label, the folder's name.
function(gdx_test name label)
  cmake_parse_arguments(arg "" "TIMEOUT_S" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  gdx_target(${name})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
  if(NOT arg_TIMEOUT_S)
    set(arg_TIMEOUT_S 60)
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 30 PROPERTIES LABELS ${label} TIMEOUT ${arg_TIMEOUT_S})
endfunction()
