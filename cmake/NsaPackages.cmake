# Debian packages: `cmake --build --preset release --target packages` writes nsa-coordinator, nsa-agent (with nsa-worker), nsactl and, with a CUDA
# toolkit, nsa-worker-cuda into the build folder. Each is a component: nsa_program() puts a program into the one with its package's name.
set(deb ${PROJECT_SOURCE_DIR}/deploy/deb)
set(staged ${PROJECT_BINARY_DIR}/deb)

# What is read here is read again once it has changed.
file(GLOB staged_from ${PROJECT_SOURCE_DIR}/deploy/systemd/*.service ${PROJECT_SOURCE_DIR}/configs/*.yaml)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${staged_from})

# The units of the bundle, with the paths of a package, and the configurations of both, for the state folders of the units.
foreach(daemon coordinator agent)
  file(READ ${PROJECT_SOURCE_DIR}/deploy/systemd/nsa-${daemon}.service unit)
  string(REPLACE /opt/nsa/bin/ /usr/bin/ unit "${unit}")
  string(REPLACE /opt/nsa/README.md /usr/share/doc/nsa-${daemon}/README.md unit "${unit}")
  string(REGEX REPLACE "^(#[^\n]*\n)+" "" unit "${unit}")
  file(WRITE ${staged}/nsa-${daemon}.service "${unit}")
  file(READ ${PROJECT_SOURCE_DIR}/configs/${daemon}.yaml config)
  # The folder that the unit makes; commands that read the file then need no NSA_STATE_DIR.
  string(REGEX REPLACE "\n# state_dir: " "\nstate_dir: " config "${config}")
  file(WRITE ${staged}/bundle/${daemon}.yaml "${config}")
  install(FILES ${staged}/bundle/${daemon}.yaml DESTINATION deploy/systemd)
  string(REPLACE "\n# local_agent: true" "\nlocal_agent: false  # the package nsa-agent has a unit of its own" config "${config}")
  file(WRITE ${staged}/${daemon}.yaml "${config}")
  # Not in the bundle, hence EXCLUDE_FROM_ALL.
  install(FILES ${staged}/nsa-${daemon}.service DESTINATION lib/systemd/system COMPONENT nsa-${daemon} EXCLUDE_FROM_ALL)
  install(FILES ${staged}/${daemon}.yaml DESTINATION share/nsa COMPONENT nsa-${daemon} EXCLUDE_FROM_ALL)
  install(FILES ${PROJECT_SOURCE_DIR}/README.md DESTINATION share/doc/nsa-${daemon} COMPONENT nsa-${daemon} EXCLUDE_FROM_ALL)
endforeach()

# For machines with `unix_users: true`; it is copied by hand.
install(FILES ${PROJECT_SOURCE_DIR}/deploy/systemd/nsa-agent-unix-users.conf DESTINATION share/nsa COMPONENT nsa-agent EXCLUDE_FROM_ALL)

# The timer of backups, which is off until somebody enables it. Its service calls nsactl, which the package recommends.
file(READ ${PROJECT_SOURCE_DIR}/deploy/systemd/nsa-backup.service unit)
string(REPLACE /opt/nsa/bin/ /usr/bin/ unit "${unit}")
string(REPLACE /opt/nsa/docs/deploy.md /usr/share/doc/nsa-coordinator/README.md unit "${unit}")
file(WRITE ${staged}/nsa-backup.service "${unit}")
install(FILES ${staged}/nsa-backup.service ${PROJECT_SOURCE_DIR}/deploy/systemd/nsa-backup.timer DESTINATION lib/systemd/system
  COMPONENT nsa-coordinator EXCLUDE_FROM_ALL)

# Manual pages, written from --help, and completion; the alert rules, a scrape configuration, the dashboard and the documents.
foreach(program nsactl nsa-coordinator nsa-agent)
  install(CODE "execute_process(
    COMMAND ${PROJECT_SOURCE_DIR}/deploy/man_pages.py ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${program} \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/man
    COMMAND_ERROR_IS_FATAL ANY)" COMPONENT ${program} EXCLUDE_FROM_ALL)
endforeach()
foreach(place bash|bash-completion/completions/nsactl zsh|zsh/vendor-completions/_nsactl fish|fish/vendor_completions.d/nsactl.fish)
  string(REGEX MATCH "^[a-z]+" shell ${place})
  string(REGEX REPLACE "^[a-z]+\\|" "" file ${place})
  install(CODE "
    set(file \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/${file})
    get_filename_component(folder \${file} DIRECTORY)
    file(MAKE_DIRECTORY \${folder})
    execute_process(COMMAND ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/nsactl completion ${shell} OUTPUT_FILE \${file} COMMAND_ERROR_IS_FATAL ANY)"
    COMPONENT nsactl EXCLUDE_FROM_ALL)
endforeach()
set(doc share/doc/nsa-coordinator)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${doc} COMPONENT nsa-coordinator EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION ${doc} COMPONENT nsa-coordinator EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/deploy/prometheus/prometheus.yml ${PROJECT_SOURCE_DIR}/deploy/prometheus/rules/nsa.rules.yml DESTINATION share/nsa/prometheus
  COMPONENT nsa-coordinator EXCLUDE_FROM_ALL)
install(DIRECTORY DESTINATION share/nsa/grafana COMPONENT nsa-coordinator EXCLUDE_FROM_ALL)
install(CODE "execute_process(
  COMMAND ${PROJECT_SOURCE_DIR}/deploy/grafana/make_dashboard.py \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/nsa/grafana/nsa.json
  COMMAND_ERROR_IS_FATAL ANY)" COMPONENT nsa-coordinator EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL nsa-coordinator nsa-agent nsactl)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_PACKAGE_NAME nsa)
set(CPACK_PACKAGE_VERSION ${NSA_BUILD_VERSION})
set(CPACK_PACKAGE_CONTACT "NSA training service <nsa@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Trains language models with native sparse attention")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
# The maintainer scripts use useradd.
set(CPACK_DEBIAN_NSA-COORDINATOR_PACKAGE_NAME nsa-coordinator)
set(CPACK_DEBIAN_NSA-COORDINATOR_PACKAGE_DEPENDS passwd)
set(CPACK_DEBIAN_NSA-COORDINATOR_PACKAGE_RECOMMENDS "ca-certificates, nsa-agent, nsactl")
set(CPACK_DEBIAN_NSA-COORDINATOR_PACKAGE_CONTROL_EXTRA ${deb}/coordinator/postinst ${deb}/coordinator/prerm ${deb}/coordinator/postrm)
set(CPACK_COMPONENT_NSA-COORDINATOR_DESCRIPTION "Coordinator: takes jobs, schedules them, keeps their records, shows them on a page.")
set(CPACK_DEBIAN_NSA-AGENT_PACKAGE_NAME nsa-agent)
set(CPACK_DEBIAN_NSA-AGENT_PACKAGE_DEPENDS "passwd, procps")
set(CPACK_DEBIAN_NSA-AGENT_PACKAGE_CONTROL_EXTRA ${deb}/agent/postinst ${deb}/agent/prerm ${deb}/agent/postrm)
set(CPACK_COMPONENT_NSA-AGENT_DESCRIPTION "Agent and worker: one on each machine that trains.")
set(CPACK_DEBIAN_NSACTL_PACKAGE_NAME nsactl)
set(CPACK_COMPONENT_NSACTL_DESCRIPTION "Command line: submits, watches and steers jobs.")
if(NSA_CUDA)
  # CUDA's libraries belong to no package of the distribution; what else it needs, nsa-agent needs too.
  list(APPEND CPACK_COMPONENTS_ALL nsa-worker-cuda)
  set(CPACK_DEBIAN_NSA-WORKER-CUDA_PACKAGE_NAME nsa-worker-cuda)
  set(CPACK_DEBIAN_NSA-WORKER-CUDA_PACKAGE_SHLIBDEPS OFF)
  set(CPACK_DEBIAN_NSA-WORKER-CUDA_PACKAGE_DEPENDS nsa-agent)
  set(CPACK_COMPONENT_NSA-WORKER-CUDA_DESCRIPTION "Worker for GPUs. Needs CUDA's libraries.")
endif()
include(CPack)

get_property(programs GLOBAL PROPERTY NSA_PROGRAMS)
add_custom_target(packages COMMAND ${CMAKE_CPACK_COMMAND} --config ${PROJECT_BINARY_DIR}/CPackConfig.cmake -B ${PROJECT_BINARY_DIR}/packages
  DEPENDS ${programs} VERBATIM)
