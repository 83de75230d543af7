// The Python class of certificates, for the extension module of an engine.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "rpc_backends_agents/openssl/certificates.h"

namespace rpc_backends {

// Makes the class Certificates; call it after bind_transport().
inline void bind_certificates(pybind11::module_& module) {
  namespace py = pybind11;
  py::class_<Certificates, std::shared_ptr<Certificates>>(module, "Certificates", py::module_local())
      .def(py::init(
               [](const std::string& chain, const std::string& secret_key, const std::string& authorities, bool fips) {
                 return std::make_shared<Certificates>(Crypto::get(fips), chain, secret_key, authorities);
               }),
           py::arg("chain"), py::arg("secret_key"), py::arg("authorities"), py::arg("fips") = false)
      .def_property_readonly("identity", [](const Certificates& self) { return self.subject().identity; })
      .def_property_readonly("serial", [](const Certificates& self) { return self.subject().serial; })
      .def_property_readonly("key", [](const Certificates& self) { return py::bytes(self.subject().key); })
      .def_property_readonly("expires", &Certificates::expires)
      .def_property_readonly("chain", [](const Certificates& self) { return py::bytes(self.chain()); })
      .def(
          "sign", [](const Certificates& self, const std::string& data) { return py::bytes(self.sign(data)); },
          py::arg("data"))
      .def(
          "check",
          [](const Certificates& self, const std::string& chain, const std::string& signature,
             const std::string& data) {
            const Subject subject = self.check(chain, signature, data);
            return py::make_tuple(subject.identity, subject.serial, py::bytes(subject.key));
          },
          py::arg("chain"), py::arg("signature"), py::arg("data"));
}

}  // namespace rpc_backends
