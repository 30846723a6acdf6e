// The coordinator: owns every part; the order of start and of drain is here and nowhere else.
// main.cc runs one, tests run several in a process.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "server/options.h"

namespace nsa::server {

class Server {
 public:
  // Locks the state folder, recovers the store, listens. `clock` is borrowed. Fails within two
  // seconds when a port is taken, and at once when another coordinator has the folder.
  // `unreachable` is called when the server cannot be reached any more though it runs
  // (self_probe.h).
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Options& options, const Clock& clock,
                                                       std::function<void()> unreachable);

  // Refuses new calls, lets the present ones end for at most `patience`, then ends everything but
  // the workers and their agent.
  void Drain(absl::Duration patience);

  // Drains without patience.
  ~Server();

  // Addresses with the ports that were taken; empty: none.
  const std::string& listen_address() const;
  const std::string& metrics_address() const;

 private:
  struct Parts;
  explicit Server(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace nsa::server
