# A mutant is the simulation on a transport with one known bug. Production code does not contain it: the bug
# is one textual replacement in a copy of one source, made at configure time.

option(GDX_MUTATION "Sources hold the switches of ./run mutate, in which the text of a known bug may be missing" OFF)

# gdx_plant_bug(NAME ROOT FILE FIND REPLACE): a copy of FILE (from the repository's root) below ROOT, with REPLACE for
# FIND. FIND occurs exactly once.
function(gdx_plant_bug name root file find replace)
  set(original ${PROJECT_SOURCE_DIR}/${file})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${original})
  file(READ ${original} text)
  string(LENGTH "${text}" whole)
  string(REPLACE "${find}" "" without "${text}")
  string(LENGTH "${without}" rest)
  string(LENGTH "${find}" once)
  math(EXPR removed "${whole} - ${rest}")
  if(NOT removed EQUAL once AND NOT GDX_MUTATION)
    message(FATAL_ERROR
      "mutant ${name}: its text must occur exactly once in ${file}; adapt ${CMAKE_CURRENT_LIST_FILE}:\n${find}")
  endif()
  string(REPLACE "${find}" "${replace}" mutated "${text}")
  file(CONFIGURE OUTPUT ${root}/${file} CONTENT "${mutated}" @ONLY)
endfunction()

# gdx_mutant_test(NAME TARGET [ARGUMENT...] [options of gdx_add_test]): built for this kind of test alone.
function(gdx_mutant_test name target)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "TIMEOUT_S" "ENVIRONMENT")
  set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
  gdx_compiled_apart(${target})
  target_compile_options(${target} PRIVATE -w)  # a bug may leave a parameter unused
  gdx_add_test(${name} mutant COMMAND ${target} ${arg_UNPARSED_ARGUMENTS} NEEDS ${target} TIMEOUT_S "${arg_TIMEOUT_S}"
    ENVIRONMENT ${arg_ENVIRONMENT})
endfunction()

# Sources of a mutant of a header.
set(GDX_MUTABLE_SOURCES requester.cpp responder.cpp uc.cpp ud.cpp unacknowledged.cpp)

#gdx_mutant(NAME FILE <source or header below driver-shim/softhca/transport>
#            FIND <text that occurs there exactly once> REPLACE <text> SEEDS <A..B> [INVARIANT])
# The test passes when one of the seeds finds the bug, and prints that seed: by the oracle alone, or with INVARIANT by
# the transport's invariants too.
function(gdx_mutant name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "INVARIANT" "FILE;FIND;REPLACE;SEEDS" "")
  set(folder driver-shim/softhca/transport)
  set(root ${CMAKE_CURRENT_BINARY_DIR}/mutants/${name})
  set(copy ${root}/${folder}/${arg_FILE})
  gdx_plant_bug(${name} ${root} ${folder}/${arg_FILE} "${arg_FIND}" "${arg_REPLACE}")

  # Of a library only what is not defined yet is linked, so a source's mutant stands in for the source.
  set(sources ${copy})
  if(NOT arg_FILE MATCHES "\\.cpp$")
    list(TRANSFORM GDX_MUTABLE_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/${folder}/ OUTPUT_VARIABLE sources)
  endif()
  add_executable(gdx_mutant_${name} ${sources})
  gdx_target(gdx_mutant_${name})
  target_include_directories(gdx_mutant_${name} BEFORE PRIVATE ${root})
  if(NOT arg_INVARIANT)
    target_link_libraries(gdx_mutant_${name} PRIVATE gdx_sim_no_invariants)
  endif()
  target_link_libraries(gdx_mutant_${name} PRIVATE gdx_sim_main gdx_sim_world gdx_softhca_transport)
  gdx_mutant_test(Mutant.${name} gdx_mutant_${name} --hunt --jobs 2 --seeds ${arg_SEEDS})
endfunction()
