// The coordinator. It owns every part, starts them in order and drains them. main.cc runs one
// coordinator; tests run several in one process.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "server/credentials.h"
#include "server/options.h"

namespace nsa::server {

class Server {
 public:
  // Locks the state folder, opens the store and listens. `credentials` are those of the options
  // (ReadCredentials()). `clock` is borrowed. Fails within two seconds when a port is taken, and at
  // once when another coordinator holds the state folder. `unreachable` is called when the server
  // runs but no longer accepts connections (self_probe.h).
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Options& options,
                                                       const Credentials& credentials,
                                                       const Clock& clock,
                                                       std::function<void()> unreachable);

  // Refuses new calls, gives calls in progress at most `patience` to finish, then ends everything
  // except the workers and their agent.
  void Drain(absl::Duration patience);

  // Drains with a patience of zero.
  ~Server();

  // Addresses with the actual ports. Empty: not listening there.
  const std::string& listen_address() const;
  const std::string& metrics_address() const;
  // Where the page is: "http://127.0.0.1:9464/", with https where other machines reach it.
  std::string http_url() const;

 private:
  struct Parts;
  explicit Server(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace nsa::server
