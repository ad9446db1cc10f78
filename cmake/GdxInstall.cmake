# Install and export: headers under include/gdx, one CMake package.
install(TARGETS gdx_proto gdx_device EXPORT gdx)
install(DIRECTORY proto device DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gdx FILES_MATCHING PATTERN "*.h")
install(EXPORT gdx NAMESPACE gdx:: FILE gdx-config.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/gdx)
