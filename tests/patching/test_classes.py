"""`install` and classes of unusual make; sessions in use while it comes and goes."""

from __future__ import annotations

from tests.patching.conftest import Program


def test_metaclasses_slots_and_mixins(program: Program) -> None:
    program("""
        import abc, requests, netkit
        class Meta(type):
            made = []
            def __init__(cls, name, bases, names):
                super().__init__(name, bases, names)
                Meta.made.append(name)
        class WithMeta(requests.Session, metaclass=Meta):
            pass
        class Slotted(requests.Session):
            __slots__ = ("mine",)
        class Abstract(requests.Session, abc.ABC):
            @abc.abstractmethod
            def work(self): ...
        class Concrete(Abstract):
            def work(self):
                return self.post(EMBED, json=BODY)
        class Mixin:
            def send(self, request, **options):
                request.headers["X-Mixed"] = "1"
                return super().send(request, **options)
        class Mixed(Mixin, requests.Session):
            pass
        class Sibling(requests.Session):
            def send(self, request, **options):
                return super().send(request, **options)
        class Diamond(Mixed, Sibling):
            pass
        kinds = [WithMeta, Slotted, Concrete, Mixed, Sibling, Diamond]
        orders = [kind.__mro__ for kind in kinds]
        netkit.install()
        class Late(Diamond):
            pass
        for kind in [*kinds, Late]:
            assert issubclass(kind, netkit.Session), kind
            with kind() as session:
                session.verify = CA
                answer = session.post(EMBED, json=BODY)
                assert answer.raw.version == 20, kind
                assert netkit.stats(session).requests.total == 1, kind
                assert ("X-Mixed" in answer.request.headers) == isinstance(session, Mixin)
        assert Meta.made == ["WithMeta"], "no class is made anew"
        netkit.uninstall()
        assert [kind.__mro__ for kind in kinds] == orders
        with WithMeta() as session:
            session.verify = CA
            assert session.post(EMBED, json=BODY).raw.version == 11
    """)


def test_uninstall_holds_nothing_of_a_live_session(program: Program) -> None:
    program("""
        import gc, weakref, requests, netkit
        from netkit.facade import edge_of
        session = requests.Session()
        session.verify = CA
        for _ in range(2):
            netkit.install()
            assert session.post(EMBED, json=BODY).raw.version == 20
            edge = weakref.ref(edge_of(session))
            netkit.uninstall()
            gc.collect()
            assert edge() is None
            assert session.post(EMBED, json=BODY).raw.version == 11
        session.close()
    """)
