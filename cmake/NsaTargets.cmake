# Functions for the four kinds of target: library, program, test, benchmark. Sources are listed by name.

# With precompiled headers GCC 12 inlines more and then warns of the bounds of strings in correct code, so these two warnings are left to other builds;
# together with a sanitizer no warning is an error there.
set(strict -Werror)
if(NSA_PRECOMPILE AND NSA_SANITIZE)
  set(strict "")
endif()
add_library(nsa_warnings INTERFACE)
target_compile_options(nsa_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;${strict};-Wshadow;-Wnon-virtual-dtor;-Wno-missing-field-initializers>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${NSA_PRECOMPILE}>>:-Wno-array-bounds;-Wno-stringop-overread>)

# nsa_light(target): optimize lightly. Most code waits for networks, disks and people.
function(nsa_light target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${NSA_LIGHT_OPTIMIZATION}>)
endfunction()

# nsa_precompile(target light|fast DEPS…): with NSA_PRECOMPILE, takes the headers that nearly every file of such a target includes from a precompiled
# one, which all targets with the same options share. What uses the kernels is compiled with OpenMP.
function(nsa_precompile target speed)
  if(NOT NSA_PRECOMPILE)
    return()
  endif()
  if("nsa::rpc" IN_LIST ARGN OR "nsa::proto_grpc" IN_LIST ARGN)
    target_precompile_headers(${target} REUSE_FROM nsa_precompiled_grpc_${speed})
  elseif("nsa::model" IN_LIST ARGN OR "nsa_kernels_core" IN_LIST ARGN)
    target_precompile_headers(${target} REUSE_FROM nsa_precompiled_openmp_${speed})
  elseif("nsa::proto" IN_LIST ARGN OR "nsa::job" IN_LIST ARGN)
    target_precompile_headers(${target} REUSE_FROM nsa_precompiled_proto_${speed})
  endif()
endfunction()

# nsa_precompiled(proto light DEPS x … HEADERS <a> …): the target nsa_precompiled_proto_light, which nsa_precompile() takes headers from. PROGRAMS:
# they are for the files of programs (-fPIE), not for those of libraries (-fPIC).
function(nsa_precompiled name speed)
  cmake_parse_arguments(ARG "PROGRAMS" "" "DEPS;HEADERS" ${ARGN})
  set(target nsa_precompiled_${name}_${speed})
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/${target}.cc CONTENT "")
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/${target}.cc)
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} nsa_warnings)
  target_precompile_headers(${target} PRIVATE ${ARG_HEADERS})
  if(speed STREQUAL light)
    nsa_light(${target})
  elseif(speed STREQUAL unoptimized)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  endif()
  if(ARG_PROGRAMS)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIE>)
  endif()
endfunction()

# nsa_library(name [FAST] SOURCES a.cc … DEPS x …): the library nsa_<name>, alias nsa::<name>; without SOURCES a header-only one. It is static, but
# shared in builds with a sanitizer, whose test programs would otherwise take 18 GB (BUILD_SHARED_LIBS in NsaToolchain.cmake). Headers
# are included with their path from the top of the tree. FAST: the library computes, so it is fully optimized.
function(nsa_library name)
  cmake_parse_arguments(ARG "FAST" "" "SOURCES;DEPS" ${ARGN})
  if(ARG_SOURCES)
    add_library(nsa_${name} ${ARG_SOURCES})
    # No macro tells whether the library is shared, so that both kinds have the same objects in the compiler cache.
    set_target_properties(nsa_${name} PROPERTIES DEFINE_SYMBOL "")
    target_include_directories(nsa_${name} PUBLIC ${PROJECT_SOURCE_DIR})
    target_link_libraries(nsa_${name} PUBLIC ${ARG_DEPS} PRIVATE nsa_warnings)
    if(ARG_FAST)
      nsa_precompile(nsa_${name} fast ${ARG_DEPS})
    else()
      nsa_light(nsa_${name})
      nsa_precompile(nsa_${name} light ${ARG_DEPS})
    endif()
  else()
    add_library(nsa_${name} INTERFACE)
    target_include_directories(nsa_${name} INTERFACE ${PROJECT_SOURCE_DIR})
    target_link_libraries(nsa_${name} INTERFACE ${ARG_DEPS})
  endif()
  add_library(nsa::${name} ALIAS nsa_${name})
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

add_custom_target(unit_tests)   # every test labelled unit
add_custom_target(thread_tests) # every test labelled threads

# nsa_test(common/job/load_test DEPS nsa::job LABELS slow TIMEOUT 120 PROGRAMS nsa-worker): gtest program from tests/common/job/load_test.cc.
# LABELS: slow (over ten seconds), e2e (starts programs), gpu (needs a GPU); tests with one of these run alone. A test with none of them gets
# the label unit and runs under AddressSanitizer, and, unless it is one of the kernels', the label threads: it runs under ThreadSanitizer too. Not so
# a test with the label grpc, whose server calls back within the test's process: ThreadSanitizer does not see gRPC's locks and reports races in
# gRPC's own reference counts (ServerCallbackCall::Unref). PROGRAMS are built before the test runs.
function(nsa_test path)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS;PROGRAMS" ${ARGN})
  string(REPLACE "/" "_" target ${path})
  add_executable(${target} ${PROJECT_SOURCE_DIR}/tests/${path}.cc ${ARG_SOURCES})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} nsa::test_paths GTest::gmock GTest::gtest_main nsa_warnings)
  # The tests of kernels assume optimized code, and those of the worker compute much. Every other test spends its time in the product's
  # code: at -O0 a test file compiles in 60 % of the time under AddressSanitizer, in 75 % under ThreadSanitizer.
  if(path MATCHES "^worker/")
    nsa_light(${target})
  elseif(NOT path MATCHES "^kernels/")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
    if(NSA_PRECOMPILE AND "${ARG_DEPS}" MATCHES "nsa::(server|client|rpc|proto_grpc)" AND NOT "${ARG_DEPS}" MATCHES "nsa::(model|kernels)")
      target_precompile_headers(${target} REUSE_FROM nsa_precompiled_tests_unoptimized)
    endif()
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
  if(NSA_SANITIZE)
    math(EXPR ARG_TIMEOUT "3 * ${ARG_TIMEOUT}")
  endif()
  add_test(NAME ${path} COMMAND ${target})
  set(alone ON)
  if(NOT "${ARG_LABELS}" MATCHES "slow|e2e|gpu")
    set(alone OFF)
    list(APPEND ARG_LABELS unit)
    add_dependencies(unit_tests ${target})
    if(NOT path MATCHES "^kernels/" AND NOT "grpc" IN_LIST ARG_LABELS)
      list(APPEND ARG_LABELS threads)
      add_dependencies(thread_tests ${target})
    endif()
  endif()
  set_tests_properties(${path} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} RUN_SERIAL ${alone})
endfunction()

# nsa_bench(kernels/nsa_bench DEPS nsa::kernels): Google Benchmark program from tests/kernels/nsa_bench.cc; not a test.
function(nsa_bench path)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  string(REPLACE "/" "_" target ${path})
  add_executable(${target} ${PROJECT_SOURCE_DIR}/tests/${path}.cc ${ARG_SOURCES})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} benchmark::benchmark nsa_warnings)
endfunction()
