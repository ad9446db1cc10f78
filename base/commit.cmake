# Writes OUTPUT with the commit of the tree in SOURCE, when it builds: the one that CMake saw would be too old.
execute_process(COMMAND git -c safe.directory=* describe --always --dirty --exclude=* WORKING_DIRECTORY ${SOURCE}
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
# Keeps the file's time where nothing changed, so that nothing is compiled again.
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define GDX_COMMIT \"${commit}\"\n" @ONLY)
