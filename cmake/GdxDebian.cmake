# Settings that all Debian packages of this tree have in common.
set(GDX_PACKAGE_CONTACT "The authors of gdx <maintainers@gdx.example>" CACHE STRING
  "Whoever answers for the packages, as NAME <ADDRESS>")
set(CPACK_PACKAGE_CONTACT ${GDX_PACKAGE_CONTACT})
set(CPACK_GENERATOR DEB)
# By DESTDIR, because gdxd's unit names its program by the prefix.
set(CPACK_SET_DESTDIR ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

# gdx_debian_documents(PACKAGE [ARGUMENTS...]): the documents that Debian wants. ARGUMENTS go to install().
set(gdx_debian_folder ${CMAKE_CURRENT_LIST_DIR}/debian)
function(gdx_debian_documents package)
  string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
  set(changelog ${CMAKE_CURRENT_BINARY_DIR}/debian/changelog)
  configure_file(${gdx_debian_folder}/changelog.in ${changelog} @ONLY)
  execute_process(COMMAND gzip -9nkf ${changelog} COMMAND_ERROR_IS_FATAL ANY)
  install(FILES ${gdx_debian_folder}/copyright ${changelog}.gz DESTINATION /usr/share/doc/${package} ${ARGN})
endfunction()
