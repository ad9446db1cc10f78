# Install and export: headers under include/gdx, one CMake package with gdx::gdx, gdx::device and gdx::device_cpu, with
# gdx::host and gdx::topo, which are the archives, and what they stand on.
include(CMakePackageConfigHelpers)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME libgdx-dev)

# Each after those that it links.
set(libraries proto base cuda_driver device device_cpu topo gpu calibration launch bootstrap ipc hca memory credits staging queue
  direct connector poster team host)
foreach(library ${libraries})
  get_target_property(type gdx_${library} TYPE)
  if(type STREQUAL "STATIC_LIBRARY")
    string(PREPEND archives " -lgdx_${library}")
  endif()
  set_target_properties(gdx_${library} PROPERTIES EXPORT_NAME ${library})
  gdx_install(gdx_${library} EXPORT gdx)
endforeach()
gdx_install(gdx_shared EXPORT gdx LIBRARY COMPONENT libgdx0 NAMELINK_COMPONENT libgdx-dev)
if(TARGET gdx_nccl)
  # NCCL looks for it by name among the system's libraries.
  gdx_install(gdx_nccl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT libgdx0)
endif()
set(folders proto base device driver-shim/cuda)
foreach(folder bootstrap calibration direct gpu hca memory poster queue staging team topo)
  list(APPEND folders host/${folder})
endforeach()
foreach(folder ${folders})
  get_filename_component(above ${folder} DIRECTORY)
  install(DIRECTORY ${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gdx/${above}
    FILES_MATCHING PATTERN "*.h" PATTERN fake EXCLUDE
    PATTERN libfabric_info.h EXCLUDE PATTERN libfabric_library.h EXCLUDE
    PATTERN verbs_connection.h EXCLUDE PATTERN verbs_device.h EXCLUDE PATTERN verbs_library.h EXCLUDE
    PATTERN command_line.h EXCLUDE PATTERN environment.h EXCLUDE PATTERN log.h EXCLUDE PATTERN output.h EXCLUDE)
endforeach()
install(FILES host/gdx.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gdx/host)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/gdx)
install(EXPORT gdx NAMESPACE gdx:: FILE gdx-targets.cmake DESTINATION ${package})
configure_package_config_file(cmake/gdx-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/gdx-config.cmake
  INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/gdx-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/gdx-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/gdx-config-version.cmake
  cmake/GdxKernels.cmake DESTINATION ${package})

file(RELATIVE_PATH from_libdir /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" from_libdir ${from_libdir})
# gdx_write_pkg_config(NAME REQUIRES LIBRARIES)
function(gdx_write_pkg_config name requires libraries)
  configure_file(cmake/gdx.pc.in ${name}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()
gdx_write_pkg_config(gdx "libibverbs libmlx5" "-lgdx_device_cpu -lgdx -lboost_context -lpthread")
# Whoever links the archives needs the libraries below them too.
gdx_write_pkg_config(gdx-static "libibverbs libmlx5 hwloc openssl" "${archives} -lfmt -lboost_context -ldl -lpthread")

get_property(installed GLOBAL PROPERTY gdx_installed)
list(TRANSFORM installed REPLACE "(.+)" "$<TARGET_FILE:\\1>\n")
string(JOIN "" installed ${installed})
file(GENERATE OUTPUT ${gdx_installed_files} CONTENT "${installed}")
