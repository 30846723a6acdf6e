# Functions for the four kinds of target: library, program, test, benchmark.

# -Wsubobject-linkage is meant for headers; with files compiled together (nsa_unity) it also finds private classes of sources.
add_library(nsa_warnings INTERFACE)
target_compile_options(nsa_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-Wshadow;-Wnon-virtual-dtor;-Wno-missing-field-initializers>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)

# nsa_light(target): optimize lightly. Most code waits for networks, disks and people.
function(nsa_light target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${NSA_LIGHT_OPTIMIZATION}>)
endfunction()

# nsa_unity(OUT target a.cc b.cc …): the sources to compile for the target: files that include up to eight of the given ones each, because most of a file's time
# goes into the headers of gRPC, protobuf and Abseil; generated files and other languages as they are. Names in unnamed namespaces must differ within a
# folder. clang-tidy still reads every file alone, so each includes what it needs. The names in the files are relative, unlike those of CMake's
# UNITY_BUILD, so that another clone finds its objects in the compiler cache without running the preprocessor.
function(nsa_unity out target)
  set(alone "")
  set(names "")
  foreach(source ${ARGN})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE OUTPUT_VARIABLE path)
    cmake_path(IS_PREFIX CMAKE_BINARY_DIR ${path} is_generated)
    if(is_generated OR NOT path MATCHES "\\.cc$")
      list(APPEND alone ${source})
    else()
      cmake_path(RELATIVE_PATH path BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
      list(APPEND names ${path})
    endif()
  endforeach()
  nsa_groups(made ${target} ${names})
  set(${out} ${made} ${alone} PARENT_SCOPE)
endfunction()

# nsa_groups(OUT target name …): writes the files that include the named ones, eight each.
function(nsa_groups out target)
  set(made "")
  list(LENGTH ARGN left)
  while(left)
    list(SUBLIST ARGN 0 8 some)
    list(REMOVE_ITEM ARGN ${some})
    list(LENGTH ARGN left)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/unity/${target}_${left}.cc)
    list(TRANSFORM some REPLACE "(.+)" "#include \"\\1\"\n" OUTPUT_VARIABLE lines)
    list(JOIN lines "" content)
    file(CONFIGURE OUTPUT ${file} CONTENT "${content}" @ONLY)
    list(APPEND made ${file})
  endwhile()
  set(${out} ${made} PARENT_SCOPE)
endfunction()

# nsa_sources(OUT FOLDER x EXCEPT y z …): every .cc file of the folder and of the folders in it, but for the files and folders that EXCEPT names.
function(nsa_sources out)
  cmake_parse_arguments(ARG "" "FOLDER" "EXCEPT" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_FOLDER} ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_FOLDER}/*.cc)
  foreach(name ${ARG_EXCEPT})
    if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_FOLDER}/${name})
      message(FATAL_ERROR "EXCEPT: ${name} is not in ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_FOLDER}")
    endif()
    string(REPLACE "." "\\." name "${name}")
    list(FILTER sources EXCLUDE REGEX "^${name}(/|$)")
  endforeach()
  list(TRANSFORM sources PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_FOLDER}/)
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

# nsa_library(name [FAST] [ALONE] [FOLDER x [EXCEPT y …]] [SOURCES a.cc …] DEPS x …): the library nsa_<name>, alias nsa::<name>, of a folder (nsa_sources) or of the
# named sources; with neither a header-only one. It is static, but shared in builds with a sanitizer, whose test programs would otherwise
# take 18 GB (BUILD_SHARED_LIBS in NsaToolchain.cmake). Headers are included with their path from the top of the tree. FAST: the library
# computes, so it is fully optimized. ALONE: its files are not compiled together (nsa_unity).
function(nsa_library name)
  cmake_parse_arguments(ARG "FAST;ALONE" "FOLDER" "EXCEPT;SOURCES;DEPS" ${ARGN})
  if(ARG_FOLDER)
    nsa_sources(files FOLDER ${ARG_FOLDER} EXCEPT ${ARG_EXCEPT})
    list(APPEND ARG_SOURCES ${files})
  endif()
  if(ARG_SOURCES)
    set(compiled ${ARG_SOURCES})
    if(NOT ARG_ALONE)
      nsa_unity(compiled nsa_${name} ${ARG_SOURCES})
    endif()
    add_library(nsa_${name} ${compiled})
    # No macro tells whether the library is shared, so that both kinds have the same objects in the compiler cache.
    set_target_properties(nsa_${name} PROPERTIES DEFINE_SYMBOL "")
    target_include_directories(nsa_${name} PUBLIC ${PROJECT_SOURCE_DIR})
    target_link_libraries(nsa_${name} PUBLIC ${ARG_DEPS} PRIVATE nsa_warnings)
    if(NOT ARG_FAST)
      nsa_light(nsa_${name})
    endif()
  else()
    add_library(nsa_${name} INTERFACE)
    target_include_directories(nsa_${name} INTERFACE ${PROJECT_SOURCE_DIR})
    target_link_libraries(nsa_${name} INTERFACE ${ARG_DEPS})
  endif()
  add_library(nsa::${name} ALIAS nsa_${name})
  nsa_room(${name} FOLDER ${ARG_FOLDER} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS})
endfunction()

# Writes down the folder of a library and what it links, for tests/layering_test.py.
function(nsa_room name)
  cmake_parse_arguments(ARG "" "FOLDER" "SOURCES;DEPS" ${ARGN})
  set(folder -)
  if(ARG_FOLDER OR ARG_SOURCES)
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_FOLDER})
    string(REGEX REPLACE "/\\.?$" "" folder ${folder})
  endif()
  list(FILTER ARG_DEPS INCLUDE REGEX "^nsa(::|_)")
  list(TRANSFORM ARG_DEPS REPLACE "^nsa(::|_)" "")
  list(JOIN ARG_DEPS " " deps)
  set_property(GLOBAL APPEND_STRING PROPERTY NSA_ROOMS "${name} ${folder} ${deps}\n")
endfunction()

# nsa_program(nsactl SOURCES main.cc DEPS nsa::client): a program in build/<preset>/bin, installed to bin/, part of the target `programs`. PACKAGE: the
# Debian package that has it (cmake/NsaPackages.cmake); default: one with its name.
function(nsa_program name)
  cmake_parse_arguments(ARG "" "PACKAGE" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_PACKAGE)
    set(ARG_PACKAGE ${name})
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} nsa_warnings)
  nsa_light(${name})
  nsa_room(${name} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS})
  install(TARGETS ${name} RUNTIME DESTINATION bin COMPONENT ${ARG_PACKAGE})
  set_property(GLOBAL APPEND PROPERTY NSA_PROGRAMS ${name})
endfunction()

# nsa_sm80_twin(nsa-bench): the same program with kernels for sm_80 only, in build/<preset>/sm80. Built only by the target gpu_test_bundle.
function(nsa_sm80_twin name)
  set(twin ${name}_sm80)
  get_target_property(sources ${name} SOURCES)
  add_executable(${twin} EXCLUDE_FROM_ALL ${sources})
  foreach(property LINK_LIBRARIES INCLUDE_DIRECTORIES COMPILE_DEFINITIONS)
    get_target_property(value ${name} ${property})
    if(value)
      set_target_properties(${twin} PROPERTIES ${property} "${value}")
    endif()
  endforeach()
  target_compile_definitions(${twin} PRIVATE NSA_SM80=1)
  set_target_properties(${twin} PROPERTIES NSA_SM80 ON EXPORT_COMPILE_COMMANDS OFF
    OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/sm80)
  set_property(GLOBAL APPEND PROPERTY NSA_SM80_PROGRAMS ${twin})
endfunction()

add_custom_target(unit_tests)   # every unit test of this preset
add_custom_target(thread_tests) # those of the rooms in NSA_THREAD_ROOMS

# The rooms whose code has threads or locks: their unit tests run under ThreadSanitizer too. tests/thread_rooms_test.sh compares this list with the code.
set(NSA_THREAD_ROOMS
  client common/base common/http common/rpc common/run common/s3
  server server/act server/notice server/provision server/rpc server/store server/watch server/web
  worker/agent worker/train worker/train/checkpoint worker/train/comm worker/train/data worker/train/gpu worker/train/profile worker/train/serve worker/train/step
  worker/train/telemetry)

# nsa_together(OUT target a.cc b.cc …): sources of the target that are made of up to sixteen test files each (tests/testing/together.sh).
function(nsa_together out target)
  set(made "")
  list(LENGTH ARGN left)
  while(left)
    list(SUBLIST ARGN 0 16 some)
    list(REMOVE_ITEM ARGN ${some})
    list(LENGTH ARGN left)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/${target}_${left}.cc)
    list(TRANSFORM some REPLACE "^${PROJECT_SOURCE_DIR}/" "" OUTPUT_VARIABLE names)
    add_custom_command(OUTPUT ${file} COMMAND tests/testing/together.sh ${file} ${names}
      DEPENDS ${some} ${PROJECT_SOURCE_DIR}/tests/testing/together.sh WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM)
    list(APPEND made ${file})
  endwhile()
  set(${out} ${made} PARENT_SCOPE)
endfunction()

# nsa_tests(server/decide [OPTIMIZED] DEPS nsa::server_decide … [EXCEPT x …] [FILES a_test …] [PROGRAMS p …]): the unit tests of a room in
# one gtest program, server_decide_tests, made of every *_test.cc below tests/server/decide but for the files and folders of EXCEPT; with FILES, of these
# only. ctest runs each file alone, under the name of its path: server/decide/rule/cordon_test. A start under AddressSanitizer takes 0.1 s of processor
# time (the 19 files of server/decide alone 3.1 s, in one process 1.4 s), which is what a failure's name and a process of its own cost.
# Unit tests run under AddressSanitizer and UndefinedBehaviorSanitizer, and those of NSA_THREAD_ROOMS under ThreadSanitizer too. OPTIMIZED: also in
# builds without a sanitizer, because their tolerances are those of optimized code; there the others are built only when their program is named.
# PROGRAMS are built before the tests run. Files whose server calls back within the test's process (server_fixture.h, fake_coordinator.h) do not run under
# ThreadSanitizer, which does not see gRPC's locks and reports races in gRPC's own reference counts (ServerCallbackCall::Unref).
function(nsa_tests path)
  cmake_parse_arguments(ARG "OPTIMIZED" "" "DEPS;EXCEPT;FILES;PROGRAMS" ${ARGN})
  set(root ${PROJECT_SOURCE_DIR}/tests/)
  if(ARG_FILES)
    list(TRANSFORM ARG_FILES REPLACE "(.+)" "${root}${path}/\\1.cc" OUTPUT_VARIABLE sources)
  else()
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${root}${path}/*_test.cc)
    foreach(name ${ARG_EXCEPT})
      list(FILTER sources EXCLUDE REGEX "^${root}${path}/${name}(\\.cc$|/)")
    endforeach()
  endif()
  string(REPLACE "/" "_" target ${path}_tests)
  nsa_together(together ${target} ${sources})
  add_executable(${target} EXCLUDE_FROM_ALL ${together})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} nsa::test_main nsa::test_paths GTest::gmock nsa_warnings)
  # Tests of kernels assume optimized code, and those of the worker compute much. Every other test spends its time in the product's code, and
  # compiles in 60 to 75 % of the time without optimization.
  if(path MATCHES "^worker/")
    nsa_light(${target})
  elseif(NOT path MATCHES "^kernels")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  endif()
  if(ARG_PROGRAMS)
    add_dependencies(${target} ${ARG_PROGRAMS})
  endif()
  set(timeout 120)
  if(NSA_SANITIZE STREQUAL "thread")
    set(timeout 1200)
  elseif(NSA_SANITIZE)
    set(timeout 360)
  elseif(NOT ARG_OPTIMIZED)
    return()
  endif()
  if(NSA_SANITIZE STREQUAL "thread" AND NOT path IN_LIST NSA_THREAD_ROOMS)
    return()
  endif()
  add_dependencies(unit_tests ${target})
  if(path IN_LIST NSA_THREAD_ROOMS)
    add_dependencies(thread_tests ${target})
  endif()
  if(NOT NSA_SANITIZE)
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL OFF)
  endif()
  foreach(source ${sources})
    string(REGEX REPLACE "^${root}(.*)\\.cc$" "\\1" name ${source})
    file(STRINGS ${source} calls_back LIMIT_COUNT 1
      REGEX "^#include \"tests/(server/server_fixture|server/web/list_fixture|testing/fakes/fake_coordinator)[.]h\"$")
    if(NSA_SANITIZE STREQUAL "thread" AND calls_back)
      continue()
    endif()
    add_test(NAME ${name} COMMAND ${target} --of tests/${name}.cc)
    # ctest tells the command only of a program that is built; tests/run.sh builds the required file.
    set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT ${timeout} REQUIRED_FILES $<TARGET_FILE:${target}>)
  endforeach()
endfunction()

# nsa_test(faults/kill9_test DEPS nsa::run LABELS e2e slow TIMEOUT 900 PROGRAMS nsa-worker): a gtest program of its own from tests/faults/kill9_test.cc, for
# tests that start programs, take long or need a GPU. LABELS: e2e (starts programs), slow (over ten seconds), gpu (needs a GPU), nightly (see
# tests/nightly.txt). They run in builds without a sanitizer.
function(nsa_test path)
  cmake_parse_arguments(ARG "" "TIMEOUT" "DEPS;LABELS;PROGRAMS" ${ARGN})
  string(REPLACE "/" "_" target ${path})
  add_executable(${target} ${PROJECT_SOURCE_DIR}/tests/${path}.cc)
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} nsa::test_main nsa::test_paths GTest::gmock nsa_warnings)
  if(path MATCHES "^worker/")
    nsa_light(${target})
  elseif(NOT path MATCHES "^kernels/")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  endif()
  if(ARG_PROGRAMS)
    add_dependencies(${target} ${ARG_PROGRAMS})
  endif()
  if("gpu" IN_LIST ARG_LABELS)
    set_property(GLOBAL APPEND PROPERTY NSA_GPU_TESTS ${target})
    set_property(GLOBAL APPEND PROPERTY NSA_GPU_TEST_PROGRAMS ${ARG_PROGRAMS})
    nsa_sm80_twin(${target})
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_test(NAME ${path} COMMAND ${target})
  # Two at a time: ctest runs four processors' worth of tests on two cores (tests/run.sh).
  set_tests_properties(${path} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} PROCESSORS 2)
  if("gpu" IN_LIST ARG_LABELS)
    set_tests_properties(${path} PROPERTIES RESOURCE_LOCK gpu)
  endif()
endfunction()

# nsa_test_group(agent_programs FILES worker/agent/agent_test … DEPS … LABELS e2e PROGRAMS …): like nsa_test for each of these files, but in one gtest program,
# agent_programs_tests, because gRPC's and gmock's headers take most of the time to compile one. LABELS, TIMEOUT and PROGRAMS are those of all its tests.
function(nsa_test_group group)
  cmake_parse_arguments(ARG "" "TIMEOUT" "FILES;DEPS;LABELS;PROGRAMS" ${ARGN})
  list(TRANSFORM ARG_FILES REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/tests/\\1.cc" OUTPUT_VARIABLE sources)
  set(target ${group}_tests)
  nsa_together(together ${target} ${sources})
  add_executable(${target} ${together})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} nsa::test_main nsa::test_paths GTest::gmock nsa_warnings)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  add_dependencies(${target} ${ARG_PROGRAMS})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  foreach(name ${ARG_FILES})
    add_test(NAME ${name} COMMAND ${target} --of tests/${name}.cc)
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} PROCESSORS 2)
  endforeach()
endfunction()

# nsa_bench(kernels/nsa_bench DEPS nsa::kernels): Google Benchmark program from tests/kernels/nsa_bench.cc; not a test.
function(nsa_bench path)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  string(REPLACE "/" "_" target ${path})
  add_executable(${target} ${PROJECT_SOURCE_DIR}/tests/${path}.cc ${ARG_SOURCES})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} benchmark::benchmark nsa_warnings)
endfunction()
