// Notifies systemd (sd_notify) without its library: one datagram to $NOTIFY_SOCKET.
#pragma once

#include <string>

namespace nsa::server {

// "READY=1", "STOPPING=1", "WATCHDOG=1". Does nothing when $NOTIFY_SOCKET is not set.
void NotifyServiceManager(const std::string& state);

}  // namespace nsa::server
