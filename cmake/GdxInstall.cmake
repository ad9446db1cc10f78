# Install and export: headers under include/gdx, one CMake package with gdx::host, gdx::device, gdx::device_cpu and
# gdx::topo, and what they stand on.
include(CMakePackageConfigHelpers)

# Each after those that it links.
set(libraries proto base cuda_driver device device_cpu topo gpu calibration bootstrap ipc hca memory credits staging queue
  direct connector team host)
foreach(library ${libraries})
  get_target_property(type gdx_${library} TYPE)
  if(type STREQUAL "STATIC_LIBRARY")
    string(PREPEND archives " -lgdx_${library}")
  endif()
  set_target_properties(gdx_${library} PROPERTIES EXPORT_NAME ${library})
  gdx_install(gdx_${library} EXPORT gdx)
endforeach()
set(folders proto base device driver-shim/cuda)
foreach(folder bootstrap calibration direct gpu hca memory queue staging team topo)
  list(APPEND folders host/${folder})
endforeach()
foreach(folder ${folders})
  get_filename_component(above ${folder} DIRECTORY)
  install(DIRECTORY ${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gdx/${above}
    FILES_MATCHING PATTERN "*.h" PATTERN fake EXCLUDE
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
configure_file(cmake/gdx.pc.in gdx.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/gdx.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

get_property(installed GLOBAL PROPERTY gdx_installed)
list(TRANSFORM installed REPLACE "(.+)" "$<TARGET_FILE:\\1>\n")
string(JOIN "" installed ${installed})
file(GENERATE OUTPUT ${gdx_installed_files} CONTENT "${installed}")
