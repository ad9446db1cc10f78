# Fails unless PROGRAM prints what FILE says.
execute_process(COMMAND ${PROGRAM} OUTPUT_VARIABLE printed COMMAND_ERROR_IS_FATAL ANY)
file(READ ${FILE} kept)
if(NOT printed STREQUAL kept)
  message(FATAL_ERROR
    "${PROGRAM} does not print ${FILE} any more: regenerate it with ./run papers, or see what changed:\n${printed}")
endif()
