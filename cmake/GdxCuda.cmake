# Device code compiled by nvcc, as objects: proof on every build that the one source is also CUDA.
if(GDX_CUDA)
  set(CMAKE_CUDA_ARCHITECTURES 80 90)
  enable_language(CUDA)
endif()

function(gdx_cuda_objects name)
  set(copies "")
  foreach(source ${ARGN})
    get_filename_component(stem ${source} NAME_WE)
    set(copy ${CMAKE_CURRENT_BINARY_DIR}/${stem}.nvcc.cu)
    # A second name: the first belongs to the C++ build of the same file in this directory.
    file(CONFIGURE OUTPUT ${copy} CONTENT "#include \"${CMAKE_CURRENT_SOURCE_DIR}/${source}\"\n" @ONLY)
    list(APPEND copies ${copy})
  endforeach()
  add_library(${name} OBJECT ${copies})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(${name} PRIVATE -std=c++20 --expt-relaxed-constexpr -Werror=all-warnings)
endfunction()
