# Settings of every target of gdx. A target opts in by name: there are no global flags.
# gdx_target(NAME [STANDARD]): whoever links it compiles as C++20 at least, or as STANDARD.
function(gdx_target name)
  set(standard cxx_std_20)
  if(ARGC GREATER 1)
    set(standard cxx_std_${ARGV1})
  endif()
  get_target_property(type ${name} TYPE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    target_compile_features(${name} INTERFACE ${standard})
    target_include_directories(${name} INTERFACE
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/gdx>)
    return()
  endif()
  target_compile_features(${name} PUBLIC ${standard})
  target_include_directories(${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/gdx>)
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON
    UNITY_BUILD ${GDX_UNITY} UNITY_BUILD_BATCH_SIZE 12)
  target_compile_options(${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion>)
  if(GDX_UNITY)
    # GCC takes an unnamed namespace of a source that is compiled together with others for one of a header.
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
  if(GDX_WERROR)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>
      $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
  if(GDX_SANITIZER)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:
      -fsanitize=${GDX_SANITIZER} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
    if(GDX_SANITIZER_WITHOUT)
      target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=${GDX_SANITIZER_WITHOUT}>)
    endif()
    target_link_options(${name} PRIVATE -fsanitize=${GDX_SANITIZER})
  endif()
endfunction()

# gdx_install(TARGET [ARGUMENTS...]): as install(TARGETS). Of a tree in which any of them is not built, nothing is
# installed, because half a prefix looks like a whole one.
function(gdx_install name)
  install(TARGETS ${name} ${ARGN})
  get_target_property(type ${name} TYPE)
  if(NOT type STREQUAL "INTERFACE_LIBRARY")
    set_property(GLOBAL APPEND PROPERTY gdx_installed ${name})
  endif()
endfunction()
set(gdx_installed_files ${CMAKE_CURRENT_BINARY_DIR}/installed_files.txt)
install(CODE "file(STRINGS \"${gdx_installed_files}\" files)
  foreach(file IN LISTS files)
    if(NOT EXISTS \"\${file}\")
      message(FATAL_ERROR \"nothing is installed, because \${file} is not built: \"
        \"build all first: cmake --build ${CMAKE_BINARY_DIR}\")
    endif()
  endforeach()")

# gdx_compiled_apart(TARGET...): sources that have names of their own in common, or for one of which a mutant stands in
# (cmake/GdxMutant.cmake).
function(gdx_compiled_apart)
  set_target_properties(${ARGN} PROPERTIES UNITY_BUILD OFF)
endfunction()

# Headers that most sources include, parsed once: gdx_precompiled(TARGET...) for static libraries and programs.
# The option names the precompiled header in preprocessed text, without which ccache keeps nothing that uses one.
set(GDX_PRECOMPILED_OPTIONS $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
set(GDX_COMMON_HEADERS <algorithm> <array> <atomic> <chrono> <cstdint> <cstring> <deque> <functional> <map> <memory>
  <mutex> <optional> <random> <span> <string> <string_view> <vector> <fmt/format.h> <tl/expected.hpp>)
function(gdx_precompiled)
  if(NOT TARGET gdx_library_headers)
    foreach(headers gdx_library_headers gdx_program_headers)
      add_library(${headers} OBJECT ${PROJECT_SOURCE_DIR}/cmake/no_code.cpp)
      gdx_target(${headers})
      target_link_libraries(${headers} PRIVATE fmt::fmt tl::expected)
      target_precompile_headers(${headers} PRIVATE ${GDX_COMMON_HEADERS})
      target_compile_options(${headers} PRIVATE ${GDX_PRECOMPILED_OPTIONS})
    endforeach()
    # Programs are compiled in another way than libraries.
    set_target_properties(gdx_program_headers PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(gdx_program_headers PRIVATE -fPIE)
  endif()
  foreach(name ${ARGN})
    # GCC takes precompiled headers only where the macros in them are defined alike.
    target_compile_definitions(${name} PRIVATE $<TARGET_PROPERTY:fmt::fmt,INTERFACE_COMPILE_DEFINITIONS>)
    target_compile_options(${name} PRIVATE ${GDX_PRECOMPILED_OPTIONS})
    get_target_property(type ${name} TYPE)
    if(type STREQUAL "EXECUTABLE")
      target_precompile_headers(${name} REUSE_FROM gdx_program_headers)
    else()
      target_precompile_headers(${name} REUSE_FROM gdx_library_headers)
    endif()
  endforeach()
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

# Value of LD_PRELOAD for a program of this build, or a foreign one, on the software HCA.
set(GDX_SOFTHCA_PRELOAD $<TARGET_FILE:gdx_softhca>)
if(GDX_SANITIZER_RUNTIME)
  string(PREPEND GDX_SOFTHCA_PRELOAD ${GDX_SANITIZER_RUNTIME}:)
endif()
