# SPDX-License-Identifier: Apache-2.0
"""Calls of a service from its descriptor, so that protoc alone is enough (no grpcio-tools)."""

from google.protobuf import descriptor_pb2


class Stub:
    """stub.Method(request, timeout=…) for every method of a service.

    module is what protoc --python_out made of the .proto file, service the
    service's name in it. A streaming method returns its iterator.
    """

    def __init__(self, channel, module, service):
        descriptor = module.DESCRIPTOR.services_by_name[service]
        plain = descriptor_pb2.ServiceDescriptorProto()
        descriptor.CopyToProto(plain)
        for method in plain.method:
            make = channel.unary_stream if method.server_streaming else channel.unary_unary
            call = make(
                "/%s/%s" % (descriptor.full_name, method.name),
                request_serializer=message(module, method.input_type).SerializeToString,
                response_deserializer=message(module, method.output_type).FromString,
            )
            setattr(self, method.name, call)


def message(module, full_name):
    """The class of a message of the file that module was made of."""
    return getattr(module, full_name.rsplit(".", 1)[1])
