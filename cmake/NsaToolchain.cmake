# Compiler, linker and sanitizer settings that every target shares.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# -g1 keeps function names and line tables, which dump-stack needs, at a tenth of the size of -g.
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g1 -fno-omit-frame-pointer")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1 -fno-omit-frame-pointer")
# For all code that does not compute (nsa_light): compiles in two thirds to nine tenths of the time.
set(NSA_LIGHT_OPTIMIZATION $<$<CONFIG:Release>:-O1>)

# All programs are in one folder, as in the bundle, so that they find each other.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib")
# DT_RPATH and not RUNPATH, so that the libraries that a library needs are also found there.
add_link_options(-Wl,--disable-new-dtags)

find_program(NSA_CCACHE ccache)
if(NSA_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${NSA_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${NSA_CCACHE})
endif()
find_program(NSA_MOLD mold)
if(NSA_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

if(NSA_SANITIZE)
  # With sanitizers, GCC 12 reports false positives about uninitialized members of std::regex and std::variant.
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
endif()
if(NSA_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all)
  add_link_options(-fsanitize=address,undefined)
elseif(NSA_SANITIZE STREQUAL "thread")
  # The distribution's libprotobuf is compiled without the sanitizer, but its headers give map fields two more members when
  # __SANITIZE_THREAD__ is defined. Our code and the library would then use different layouts (this crashed in
  # Reflection::AddMessage), so the macro is undefined. _GLIBCXX_TSAN still tells the standard library about the
  # sanitizer; what it does for it is in headers only.
  add_compile_options(-fsanitize=thread -U__SANITIZE_THREAD__ -D_GLIBCXX_TSAN=1)
  add_link_options(-fsanitize=thread)
elseif(NSA_SANITIZE)
  message(FATAL_ERROR "NSA_SANITIZE: '${NSA_SANITIZE}' (address or thread); leave it empty for none")
endif()

# With static libraries the test programs take 18 GB under AddressSanitizer, with shared ones a tenth of that, and link faster. The programs that
# libFuzzer runs stay in one piece each, to be carried to other machines.
if(NSA_SANITIZE AND NOT NSA_FUZZ)
  set(BUILD_SHARED_LIBS ON)
endif()

if(NSA_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "NSA_FUZZ: libFuzzer is clang's; use the preset fuzz, or set CMAKE_CXX_COMPILER=clang++")
  endif()
  # Loops that count what they reach cannot be vectorized, which clang reports for `omp simd`.
  add_compile_options(-fsanitize=fuzzer-no-link -Wno-pass-failed)
endif()

# CUDA is on when a toolkit is found, unless NSA_CUDA says otherwise.
include(CheckLanguage)
if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND EXISTS /usr/local/cuda/bin/nvcc)
  set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
endif()
if("${NSA_CUDA}" STREQUAL "")
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(NSA_CUDA ON CACHE STRING "" FORCE)
  else()
    set(NSA_CUDA OFF CACHE STRING "" FORCE)
  endif()
endif()
if(NSA_CUDA)
  # Code for sm_80 and sm_90a, and sm_80 PTX for newer GPUs.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES "80;90a-real")
  endif()
  enable_language(CUDA)
  # CMake 3.25 does not know nvcc's option for C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -lineinfo")
endif()
message(STATUS "NSA_CUDA=${NSA_CUDA} NSA_SANITIZE=${NSA_SANITIZE} build type ${CMAKE_BUILD_TYPE}")
