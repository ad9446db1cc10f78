# Device code compiled by nvcc. Programs link the CUDA runtime statically, and that loads the driver at run time:
# one binary starts on machines with and without a GPU.
set(GDX_CUDA_ARCHITECTURES "80;90;100" CACHE STRING "GPUs that kernels are compiled for, as sm_ numbers")
if(GDX_CUDA)
  # Architecture for the compiler's test: any will do.
  list(GET GDX_CUDA_ARCHITECTURES 0 CMAKE_CUDA_ARCHITECTURES)
  enable_language(CUDA)
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE known COMMAND_ERROR_IS_FATAL ANY)
  set(CMAKE_CUDA_ARCHITECTURES "")
  foreach(architecture ${GDX_CUDA_ARCHITECTURES})
    if(known MATCHES "compute_${architecture}[^0-9]")
      list(APPEND CMAKE_CUDA_ARCHITECTURES ${architecture})
    else()
      message(WARNING "SKIPPED: nvcc ${CMAKE_CUDA_COMPILER_VERSION} compiles no kernels for sm_${architecture}")
    endif()
  endforeach()
endif()

# Adds kernel sources to a target, compiled by nvcc.
function(gdx_cuda_sources name)
  foreach(source ${ARGN})
    get_filename_component(stem ${source} NAME_WE)
    get_filename_component(path ${source} ABSOLUTE)
    set(copy ${CMAKE_CURRENT_BINARY_DIR}/${stem}.nvcc.cu)
    # Copies under a second name, because the first belongs to the C++ build of the file in this directory.
    file(CONFIGURE OUTPUT ${copy} CONTENT "#include \"${path}\"\n" @ONLY)
    target_sources(${name} PRIVATE ${copy})
  endforeach()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --expt-relaxed-constexpr $<$<BOOL:${GDX_WERROR}>:-Werror=all-warnings>>)
endfunction()

function(gdx_cuda_objects name)
  add_library(${name} OBJECT)
  gdx_cuda_sources(${name} ${ARGN})
endfunction()

# A program whose kernels run on a GPU. gdx_cuda_program(NAME SOURCES host.cpp... KERNELS kernels.cu... LIBRARIES ...)
function(gdx_cuda_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;KERNELS;LIBRARIES")
  add_executable(${name} ${arg_SOURCES})
  gdx_target(${name})
  gdx_cuda_sources(${name} ${arg_KERNELS})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES})
  set_target_properties(${name} PROPERTIES CUDA_RUNTIME_LIBRARY Static)
endfunction()

# Compiles kernels for the CPU layer, as C++.
function(gdx_cpu_kernels)
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
endfunction()
