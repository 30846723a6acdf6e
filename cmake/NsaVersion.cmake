# NSA_BUILD_VERSION: what packages, the bundle and the programs call themselves. NSA_REVISION: the commit, in 12 digits, or "unknown".
execute_process(COMMAND git -c safe.directory=* -C ${PROJECT_SOURCE_DIR} rev-parse --short=12 HEAD
  OUTPUT_VARIABLE NSA_REVISION OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT NSA_REVISION)
  set(NSA_REVISION unknown)
endif()
set(NSA_BUILD_VERSION "${NSA_VERSION}")
if(NOT NSA_BUILD_VERSION)
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/deploy/version.sh
    OUTPUT_VARIABLE NSA_BUILD_VERSION OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
